#include "agent/ranks/rank_supervisor.h"

#include <absl/strings/str_cat.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <future>
#include <optional>
#include <utility>

#include "agent/hang/hang_evidence.h"
#include "base/check.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/rank/exit_code.h"

namespace fsdpd {
namespace {

constexpr absl::Duration kDisconnectLimit = absl::Seconds(30);
constexpr int kTickMs = 1000;        // Tick while nothing is stopping: reaps orphans and checks progress.
constexpr int kStoppingTickMs = 20;  // Tick while a process tree is stopping; each scans /proc once.
// Jobs in Register.past_attempts: a launch that may have been lost is among the most recent ones.
constexpr size_t kMaxHadJobs = 64;
constexpr size_t kMaxKnownJobs = 10000;
// Part of the grace period for a rank to exit after SIGTERM: half a second, plus some for a busy machine.
constexpr absl::Duration kExitTime = absl::Milliseconds(800);
// Age of the reading before the launch; GPUs are read ten times a second.
constexpr absl::Duration kReadBefore = absl::Seconds(2);

// REQUIRES: all ranks have left.
v1::FreedMemory FreedBy(const RunningAttempt& attempt) {
  v1::FreedMemory freed;
  for (const HostedRank& rank : attempt.ranks) rank.memory.AddTo(&freed);
  for (const v1::FreedMemory::Held& held : freed.held())
    LogWarning("GPU memory was not freed %s device=%d bytes=%d", ToString(attempt.id), held.device(),
               held.bytes());
  return freed;
}

}  // namespace

RankSupervisor::RankSupervisor(Options options, RankLogs* logs, RankEvents* events, Clock* clock)
    : options_(std::move(options)),
      logs_(logs),
      events_(events),
      clock_(clock),
      history_(kMaxKnownJobs,
               [this](const std::string& job_id) {
                 const auto first = attempts_.lower_bound({job_id, 0});
                 return first != attempts_.end() && first->first.job_id == job_id;
               }),
      reports_(options_.errors, &attempts_, logs, events, clock),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  FSDPD_CHECK(wake_.valid());
  if (options_.own_thread) thread_ = std::thread([this] { Run(); });
}

RankSupervisor::~RankSupervisor() {
  if (!options_.own_thread) return;
  Post([this] { quit_ = true; });
  thread_.join();
}

void RankSupervisor::Launch(v1::Launch launch, absl::Duration limit) {
  Post([this, launch = std::move(launch), limit] { AcceptOrGiveUp(launch, limit); });
}

void RankSupervisor::Stop(v1::Stop stop) {
  PostFor({stop.job_id(), stop.attempt()}, [this, stop] { HandleStop(stop); });
}

void RankSupervisor::Locate(v1::Locate locate) {
  PostFor({locate.job_id(), locate.attempt()}, [this, locate] { reports_.ReportPositions(locate); });
}

void RankSupervisor::Trace(v1::Trace trace) {
  PostFor({trace.job_id(), trace.attempt()}, [this, trace] { HandleTrace(trace); });
}

void RankSupervisor::StoreValue(v1::RendezvousValue value) {
  Post([this, value = std::move(value)] { reports_.AnswerGet(value.request(), value.value()); });
}

void RankSupervisor::SetConnected(bool connected) {
  Post([this, connected] {
    connected_until_ = connected ? absl::InfiniteFuture() : clock_->Now();
    for (auto& [id, attempt] : attempts_) {
      if (!attempt->store.has_value()) attempt->RestartProgressClocks(clock_->Now());
    }
  });
}

void RankSupervisor::StopAll(absl::Duration grace) {
  Post([this] { draining_ = true; });
  StopEach(grace, /*may_save=*/true, "the agent is stopping");
}

void RankSupervisor::StopEach(absl::Duration grace, bool may_save, const std::string& reason) {
  Post([=] {
    for (auto& each : attempts_)
      each.second->Guard(options_.errors, clock_, RunningAttempt::kAllRanks,
                         [&] { BeginStop(each.second.get(), grace, may_save, reason); });
  });
}

template <typename T>
T RankSupervisor::Ask(const std::function<T()>& question) {
  std::promise<T> answer;
  Post([&] { answer.set_value(question()); });
  if (!options_.own_thread) RunPosted();
  return answer.get_future().get();
}

bool RankSupervisor::Idle() {
  return Ask<bool>([this] { return attempts_.empty(); });
}

std::vector<v1::HostedAttempt> RankSupervisor::HostedAttempts() {
  return Ask<std::vector<v1::HostedAttempt>>([this] {
    std::vector<v1::HostedAttempt> hosted;
    for (const auto& [id, attempt] : attempts_) {
      v1::HostedAttempt entry;
      entry.set_job_id(id.job_id);
      entry.set_attempt(id.attempt);
      for (const Rank& rank : attempt->ranks) {
        if (!rank.exit_reported) entry.add_ranks(rank.id.rank);
      }
      if (entry.ranks_size() > 0) hosted.push_back(std::move(entry));
    }
    return hosted;
  });
}

std::vector<AttemptId> RankSupervisor::PastAttempts() {
  return Ask<std::vector<AttemptId>>([this] { return history_.Last(kMaxHadJobs); });
}

void RankSupervisor::Post(std::function<void()> task) {
  {
    MutexLock lock(&mutex_);
    posted_.push_back(std::move(task));
  }
  FSDPD_CHECK(eventfd_write(wake_.get(), 1) == 0);
}

void RankSupervisor::PostFor(const AttemptId& id, std::function<void()> task) {
  Post([this, id, task = std::move(task)] { RunUntilSuccess(id, task); });
}

// Repeats `task` until it does not throw: the coordinator waits for its result.
void RankSupervisor::RunUntilSuccess(const AttemptId& id, const std::function<void()>& task) {
  if (options_.errors.Catch({id, RunningAttempt::kAllRanks}, task).ok()) return;
  retries_.emplace(clock_->Now() + RunningAttempt::kRetryDelay,
                   [this, id, task] { RunUntilSuccess(id, task); });
}

void RankSupervisor::Run() {
  while (!quit_) TurnOnce(TurnMs());
  attempts_.clear();  // ~RankBody kills the processes.
}

absl::Duration RankSupervisor::Turn() {
  TurnOnce(/*timeout_ms=*/0);
  return absl::Milliseconds(TurnMs());
}

void RankSupervisor::TurnOnce(int timeout_ms) {
  PollOnce(timeout_ms);
  // One timestamp per iteration: a deadline must not be checked against a later time than it was extended by.
  const absl::Time now = clock_->Now();
  ExtendDeadlines(now);
  RunPosted();
  Tick(now);
}

int RankSupervisor::TurnMs() const {
  const absl::Time now = clock_->Now();
  for (const auto& [id, attempt] : attempts_) {
    for (const Rank& rank : attempt->ranks) {
      const bool ends = attempt->stopping || rank.exit_reported;
      if (ends && !rank.released() && !rank.IsStuck(now)) return kStoppingTickMs;
    }
  }
  return kTickMs;
}

void RankSupervisor::RunPosted() {
  std::vector<std::function<void()>> tasks;
  {
    MutexLock lock(&mutex_);
    tasks.swap(posted_);
  }
  for (const auto& task : tasks) task();
}

// Polls and handles messages and exits of ranks.
void RankSupervisor::PollOnce(int timeout_ms) {
  struct Source {
    RunningAttempt* attempt;
    Rank* rank;
  };
  std::vector<Source> ended;
  std::vector<pollfd> fds = {{wake_.get(), POLLIN, 0}};
  std::vector<Source> sources = {{nullptr, nullptr}};
  const absl::Time begin = clock_->Now();
  for (auto& [id, attempt] : attempts_) {
    if (begin < attempt->retry_at) continue;
    for (Rank& rank : attempt->ranks) {
      if (rank.link != nullptr) {
        const short events = rank.link->wants_write() ? POLLIN | POLLOUT : POLLIN;
        fds.push_back({rank.link->fd(), events, 0});
        sources.push_back({attempt.get(), &rank});
      }
      if (rank.process != nullptr && !rank.exit_reported) {
        fds.push_back({rank.process->pidfd(), POLLIN, 0});
        sources.push_back({attempt.get(), &rank});
      }
    }
  }
  if (poll(fds.data(), fds.size(), timeout_ms) <= 0) return;
  eventfd_t ignored;
  if (fds[0].revents != 0) eventfd_read(wake_.get(), &ignored);
  for (size_t i = 1; i < fds.size(); ++i) {
    if (fds[i].revents == 0) continue;
    RunningAttempt* const attempt = sources[i].attempt;
    Rank* const rank = sources[i].rank;
    if (rank->link != nullptr && fds[i].fd == rank->link->fd()) {
      attempt->Guard(options_.errors, clock_, rank->id.rank, [&] {
        if ((fds[i].revents & ~POLLOUT) != 0) reports_.Read(attempt, rank, /*to_the_end=*/false);
        if (rank->link != nullptr && (fds[i].revents & POLLOUT) != 0) rank->EndLink(rank->link->Flush());
      });
    } else if (fds[i].fd == rank->process->pidfd()) {
      ended.push_back(sources[i]);
    }
  }
  // If ranks exited together, handle killed and stopped ones first: they made the others fail.
  std::stable_partition(ended.begin(), ended.end(), [](const Source& source) {
    const std::optional<ProcessEnd> end = source.rank->process->Exited();
    return end.has_value() && (end->signal != 0 || end->exit_code == kStoppedExitCode);
  });
  for (const Source& source : ended)
    source.attempt->Guard(options_.errors, clock_, source.rank->id.rank,
                          [&] { CheckExit(source.attempt, source.rank); });
}

// While this process was suspended, it could not observe ranks that followed a stop, nor the coordinator.
void RankSupervisor::ExtendDeadlines(absl::Time now) {
  const absl::Duration unseen = suspensions_.SuspendedFor(now);
  connected_until_ += unseen;
  for (auto& [id, attempt] : attempts_) {
    attempt->terminate_at += unseen;
    attempt->kill_at += unseen;
    if (unseen > absl::ZeroDuration()) attempt->RestartProgressClocks(now);
  }
}

void RankSupervisor::Tick(absl::Time now) {
  while (!retries_.empty() && retries_.begin()->first <= now) retries_.extract(retries_.begin()).mapped()();
  for (auto it = attempts_.begin(); it != attempts_.end();) {
    RunningAttempt* attempt = it->second.get();
    if (now >= attempt->retry_at)
      attempt->Guard(options_.errors, clock_, RunningAttempt::kAllRanks, [&] { Advance(attempt, now); });
    const bool left = std::all_of(attempt->ranks.begin(), attempt->ranks.end(),
                                  [](const Rank& rank) { return rank.exit_reported && rank.released(); });
    if (!left) {
      ++it;
      continue;
    }
    const AttemptId id = attempt->id;
    const bool stopped = attempt->stopping;
    const v1::FreedMemory memory = FreedBy(*attempt);
    it = attempts_.erase(it);
    RunUntilSuccess(id, [this, id, stopped, memory] { events_->AttemptGone(id, stopped, memory); });
  }
  if (now >= next_poll_) CheckProgress(now);
  if (now < next_reap_) return;
  next_reap_ = now + absl::Milliseconds(kTickMs);
  std::vector<pid_t> pids;
  for (const auto& [id, attempt] : attempts_) {
    for (const Rank& rank : attempt->ranks) {
      if (rank.process != nullptr && !rank.gone) pids.push_back(rank.process->pid());
    }
  }
  std::sort(pids.begin(), pids.end());
  ReapOrphans(pids);
}

// Skips attempts that are stopping: their grace period applies.
void RankSupervisor::CheckProgress(absl::Time now) {
  next_poll_ = now + absl::Milliseconds(kTickMs);
  for (auto& [id, attempt] : attempts_) {
    if (attempt->stopping || attempt->failed_rank.has_value()) continue;
    for (Rank& rank : attempt->ranks) {
      if (rank.process == nullptr || rank.exit_reported) continue;
      attempt->Guard(options_.errors, clock_, rank.id.rank, [&] {
        const auto report = rank.CheckProgress(EvidencePath(logs_->PathOf(rank.id)), now);
        if (report.has_value()) events_->RankStalled(rank.id, *report);
      });
    }
  }
}

// Advances the escalation of a stop by one step.
void RankSupervisor::Advance(RunningAttempt* attempt, absl::Time now) {
  if (attempt->failed_rank.has_value() && !attempt->stopping && now - connected_until_ > kDisconnectLimit) {
    BeginStop(attempt, options_.grace, /*may_save=*/false, "a rank failed while the agent was disconnected");
  }
  for (Rank& rank : attempt->ranks) {
    rank.memory.Poll(options_.used_bytes, now);
    if (rank.gone || rank.process == nullptr || now < rank.next_tree_read) continue;
    if (rank.exit_reported) rank.gone = rank.process->TreeGone();
    const bool lingers = rank.exit_reported && attempt->stopping;
    if (!rank.gone && !rank.terminated && (lingers || now >= attempt->terminate_at)) Terminate(&rank);
    if (!rank.gone && (now >= attempt->kill_at || (rank.exit_reported && !attempt->stopping))) rank.Kill(now);
    if (rank.gone) RankLeft(&rank, now);
  }
}

void RankSupervisor::RankLeft(Rank* rank, absl::Time now) {
  logs_->RankEnded(rank->id);
  reports_.Forget(rank->id);
  rank->memory.Gone(now);
  rank->memory.Poll(options_.used_bytes, now);
}

std::vector<int> RankSupervisor::UsedDevices() const {
  std::vector<int> used;
  for (const auto& [id, attempt] : attempts_) {
    for (const Rank& rank : attempt->ranks) {
      if (!rank.released()) used.push_back(rank.device);
    }
  }
  return used;
}

// After an exception, nothing of the launch is left and the exits of its ranks report the error.
void RankSupervisor::AcceptOrGiveUp(const v1::Launch& launch, absl::Duration limit) {
  const AttemptId id{launch.job_id(), launch.attempt()};
  const absl::Status caught =
      options_.errors.Catch({id, RunningAttempt::kAllRanks}, [&] { Accept(launch, limit); });
  if (caught.ok()) return;
  for (int i = 0; i < launch.ranks(); ++i) logs_->RankEnded({id, launch.first_rank() + i});
  Refuse(launch, {std::string(caught.message()), v1::ErrorClass::KIND_NODE, /*started=*/true});
}

void RankSupervisor::Accept(const v1::Launch& launch, absl::Duration limit) {
  const AttemptId id{launch.job_id(), launch.attempt()};
  // The exits of an attempt that has ended were reported.
  if (Find(attempts_, id) != nullptr || (launch.resent() && history_.Newest(id.job_id) == id.attempt)) {
    LogInfo("ignored a repeated launch %s", ToString(id));
    return events_->LaunchAcknowledged({id, launch.first_rank()});
  }
  const LaunchRefusal refusal =
      draining_ ? LaunchRefusal{"the agent is stopping"}
                : RefusalOf(launch,
                            {options_.device, options_.slots, UsedDevices(), history_.Newest(id.job_id),
                             options_.allowed_env},
                            options_.rank_binary, options_.plugin_dirs, options_.path_roots);
  if (!refusal.reason.empty()) return Refuse(launch, refusal);
  history_.Take(id);

  auto attempt = std::make_unique<RunningAttempt>();
  attempt->id = id;
  attempt->world = launch.world_size();
  attempt->planned = launch.memory_plan();
  // Validation rejects checkpoint.dir without saving.
  attempt->saves = !launch.spec().checkpoint().dir().empty();
  if (launch.ranks() == launch.world_size()) attempt->store.emplace();
  attempt->terminate_at = clock_->Now() + limit;
  attempt->kill_at = attempt->terminate_at + kExitTime;
  attempt->ranks.resize(static_cast<size_t>(launch.ranks()));
  LogInfo("starting ranks %s ranks=%d..%d world=%d", ToString(id), launch.first_rank(),
          launch.first_rank() + launch.ranks() - 1, launch.world_size());
  for (int i = 0; i < launch.ranks(); ++i) Start(attempt.get(), launch, i);
  attempts_[id] = std::move(attempt);
  events_->LaunchAcknowledged({id, launch.first_rank()});
}

void RankSupervisor::Refuse(const v1::Launch& launch, const LaunchRefusal& refusal) {
  reports_.ReportRefusal(launch, refusal, history_.Newest(launch.job_id()).value_or(0), draining_);
}

void RankSupervisor::Start(RunningAttempt* attempt, const v1::Launch& launch, int index) {
  Rank* rank = &attempt->ranks[static_cast<size_t>(index)];
  v1::RankLaunch start = LaunchOf(launch, index, options_.bind_address);
  start.set_files_dir(logs_->DirectoryOf(attempt->id));
  if (launch.spec().model().has_package())
    start.set_package_dir(absl::StrCat(start.files_dir(), "/", kPackageDirectory));
  rank->id = {attempt->id, start.rank()};
  rank->device = start.device();
  if (options_.used_bytes != nullptr)
    rank->memory = {rank->device, options_.used_bytes(rank->device, clock_->Now() - kReadBefore)};
  const absl::Status started =
      rank->Start(start, options_.rank_binary, options_.spawn, options_.device, logs_->OpenForRank(rank->id));
  if (!started.ok()) {
    v1::RankExit exit;
    exit.set_exit_code(kRefusedExitCode);
    exit.set_error(std::string(started.message()));
    exit.mutable_error_class()->set_kind(v1::ErrorClass::KIND_NODE);
    rank->gone = true;
    RankLeft(rank, clock_->Now());
    return reports_.ReportExit(attempt, rank, std::move(exit), draining_);
  }
  if (const std::optional<ProgressBudget> budget = ProgressBudgetOf(launch)) {
    rank->no_progress.emplace(*budget);
    rank->no_progress->Restart(clock_->Now());
  }
  events_->RankLaunched(rank->id, start, attempt->planned);
  reports_.NotifyPeerFailed(*attempt, rank);  // An earlier rank of this launch may have failed to start.
}

void RankSupervisor::HandleStop(const v1::Stop& stop) {
  const AttemptId id{stop.job_id(), stop.attempt()};
  RunningAttempt* attempt = Find(attempts_, id);
  if (attempt == nullptr) {
    // Not hosted here. Record it, so that a launch of it that is still under way is refused.
    history_.Take(id);
    events_->AttemptGone(id, /*stopped=*/true, v1::FreedMemory());
    return;
  }
  if (stop.has_hang() && !attempt->stopping) reports_.ReportHang(*attempt, stop.hang());
  const absl::Duration grace = stop.grace_ms() > 0 ? absl::Milliseconds(stop.grace_ms()) : options_.grace;
  BeginStop(attempt, grace, stop.save(), stop.reason());
}

void RankSupervisor::BeginStop(RunningAttempt* attempt, absl::Duration grace, bool may_save,
                               const std::string& reason) {
  const absl::Time now = clock_->Now(), kill_at = std::min(attempt->kill_at, now + grace);
  const bool sooner = kill_at < attempt->kill_at;
  attempt->kill_at = kill_at;
  const bool saves =
      may_save && attempt->saves && !attempt->failed_rank.has_value() && kill_at > now + kExitTime;
  attempt->terminate_at = std::min(attempt->terminate_at, saves ? kill_at - kExitTime : now);
  const bool first = !std::exchange(attempt->stopping, true);
  if (first)
    LogInfo("stopping ranks %s grace=%s saves=%d reason=%s", ToString(attempt->id),
            absl::FormatDuration(grace), saves, reason);
  for (Rank& rank : attempt->ranks) {
    if (rank.process == nullptr || rank.gone || rank.terminated) continue;
    if (attempt->terminate_at <= now) {
      Terminate(&rank);
    } else if (first || sooner) {
      v1::AgentToRank message;
      message.mutable_leave()->set_within_ms(absl::ToInt64Milliseconds(attempt->terminate_at - now));
      rank.Send(message);
      rank.process->SignalTree(SIGCONT);  // A rank stopped by SIGSTOP could not follow the order.
    }
  }
}

void RankSupervisor::Terminate(Rank* rank) {
  rank->terminated = true;
  rank->SavePosition();
  rank->process->SignalTree(SIGTERM);
  rank->process->SignalTree(SIGCONT);
}

void RankSupervisor::HandleTrace(const v1::Trace& trace) {
  RunningAttempt* attempt = Find(attempts_, {trace.job_id(), trace.attempt()});
  if (attempt == nullptr) return;
  v1::AgentToRank message;
  message.mutable_trace()->set_first_step(trace.first_step());
  message.mutable_trace()->set_steps(trace.steps());
  message.mutable_trace()->set_memory_snapshot(trace.memory_snapshot());
  LogInfo("tracing %s first_step=%d steps=%d", ToString(attempt->id), trace.first_step(), trace.steps());
  for (Rank& rank : attempt->ranks) rank.Send(message);
}

void RankSupervisor::CheckExit(RunningAttempt* attempt, Rank* rank) {
  const std::optional<ProcessEnd> end = rank->process->Exited();
  if (!end.has_value()) return;
  if (rank->link != nullptr)
    reports_.Read(attempt, rank, /*to_the_end=*/true);  // Its final messages may still be unread.
  rank->link.reset();
  // Before the report, so that the slot is usually free when the coordinator reads it.
  rank->gone = rank->process->TreeGone();
  if (rank->gone) RankLeft(rank, clock_->Now());
  reports_.ReportExit(attempt, rank, rank->ExitOf(*end, logs_->Tail(rank->id, kLogTailLines)), draining_);
}

}  // namespace fsdpd
