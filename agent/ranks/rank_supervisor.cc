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
#include "agent/ranks/launch_refusal.h"
#include "agent/ranks/local_rendezvous.h"
#include "base/check.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/rank/exit_code.h"

namespace fsdpd {
namespace {

constexpr absl::Duration kDisconnectLimit = absl::Seconds(30);
constexpr absl::Duration kRetryDelay = absl::Seconds(1);
constexpr int kAllRanks = -1;        // Rank number of an error that concerns the whole attempt.
constexpr int kTickMs = 1000;        // Tick while nothing is stopping: reaps orphans and checks progress.
constexpr int kStoppingTickMs = 20;  // Tick while a process tree is stopping; each scans /proc once.
// Jobs in Register.past_attempts: a launch that may have been lost is among the most recent ones.
constexpr size_t kMaxHadJobs = 64;
constexpr size_t kMaxKnownJobs = 10000;
// Limit of reported ranks of a refused launch: the most that a coordinator accepts for a node.
constexpr int kMaxRefusedRanks = 1024;
// Part of the grace period for a rank to exit after SIGTERM: half a second, plus some for a busy machine.
constexpr absl::Duration kExitTime = absl::Milliseconds(800);
// Once a rank has saved and left, others that remain after this time will not leave on their own.
constexpr absl::Duration kPeerExitTime = absl::Seconds(2);
// Age of the reading before the launch; GPUs are read ten times a second.
constexpr absl::Duration kReadBefore = absl::Seconds(2);

// Whether the exit is that of a rank that followed a stop.
bool Left(const v1::RankExit& exit) {
  return exit.signal() == SIGTERM || (exit.signal() == 0 && exit.exit_code() == kStoppedExitCode);
}

}  // namespace

struct RankSupervisor::Attempt {
  AttemptId id;
  int world = 0;
  v1::MemoryPlan planned;
  std::vector<Rank> ranks;
  bool saves = false;                                // The job has checkpoints.
  absl::Time retry_at = absl::InfinitePast();        // After an internal error.
  bool stopping = false;                             // Stop requested by the coordinator or locally.
  std::optional<LocalRendezvous> store;              // Set if all ranks of the attempt are on this node.
  std::optional<int> failed_rank;                    // First rank that failed,
  bool cause_seen = false;                           // or the first that failed without having lost a peer.
  absl::Time terminate_at = absl::InfiniteFuture();  // At most kill_at.
  absl::Time kill_at = absl::InfiniteFuture();

  // REQUIRES: all ranks have left.
  v1::FreedMemory Freed() const {
    v1::FreedMemory freed;
    for (const Rank& rank : ranks) rank.memory.AddTo(&freed);
    for (const v1::FreedMemory::Held& held : freed.held())
      LogWarning("GPU memory was not freed %s device=%d bytes=%d", ToString(id), held.device(), held.bytes());
    return freed;
  }

  // Restarts the progress clocks of its ranks.
  void RestartProgressClocks(absl::Time now) {
    for (Rank& rank : ranks) {
      if (rank.no_progress.has_value()) rank.no_progress->Restart(now);
    }
  }
};

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
  PostFor({locate.job_id(), locate.attempt()}, [this, locate] { HandleLocate(locate); });
}

void RankSupervisor::Trace(v1::Trace trace) {
  PostFor({trace.job_id(), trace.attempt()}, [this, trace] { HandleTrace(trace); });
}

void RankSupervisor::StoreValue(v1::RendezvousValue value) {
  Post([this, value = std::move(value)] { AnswerGet(value.request(), value.value()); });
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
      Guard(each.second.get(), kAllRanks, [&] { BeginStop(each.second.get(), grace, may_save, reason); });
  });
}

bool RankSupervisor::Idle() {
  std::promise<bool> idle;
  Post([this, &idle] { idle.set_value(attempts_.empty()); });
  if (!options_.own_thread) RunPosted();
  return idle.get_future().get();
}

std::vector<v1::HostedAttempt> RankSupervisor::HostedAttempts() {
  std::promise<std::vector<v1::HostedAttempt>> hosted;
  Post([this, &hosted] { hosted.set_value(ListHosted()); });
  if (!options_.own_thread) RunPosted();
  return hosted.get_future().get();
}

std::vector<AttemptId> RankSupervisor::PastAttempts() {
  std::promise<std::vector<AttemptId>> had;
  Post([this, &had] { had.set_value(history_.Last(kMaxHadJobs)); });
  if (!options_.own_thread) RunPosted();
  return had.get_future().get();
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
  if (options_.errors.Catch({id, kAllRanks}, task).ok()) return;
  retries_.emplace(clock_->Now() + kRetryDelay, [this, id, task] { RunUntilSuccess(id, task); });
}

// Runs `step`; after an exception, the ranks of the attempt are handled again after kRetryDelay.
void RankSupervisor::Guard(Attempt* attempt, int rank, absl::FunctionRef<void()> step) {
  if (!options_.errors.Catch({attempt->id, rank}, step).ok()) attempt->retry_at = clock_->Now() + kRetryDelay;
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
    Attempt* attempt;
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
    Attempt* const attempt = sources[i].attempt;
    Rank* const rank = sources[i].rank;
    if (rank->link != nullptr && fds[i].fd == rank->link->fd()) {
      Guard(attempt, rank->id.rank, [&] {
        if ((fds[i].revents & ~POLLOUT) != 0) ReadRank(attempt, rank, /*to_the_end=*/false);
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
    Guard(source.attempt, source.rank->id.rank, [&] { CheckExit(source.attempt, source.rank); });
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
    Attempt* attempt = it->second.get();
    if (now >= attempt->retry_at) Guard(attempt, kAllRanks, [&] { Advance(attempt, now); });
    const bool left = std::all_of(attempt->ranks.begin(), attempt->ranks.end(),
                                  [](const Rank& rank) { return rank.exit_reported && rank.released(); });
    if (!left) {
      ++it;
      continue;
    }
    const AttemptId id = attempt->id;
    const bool stopped = attempt->stopping;
    const v1::FreedMemory memory = attempt->Freed();
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
      Guard(attempt.get(), rank.id.rank, [&] {
        const auto report = rank.CheckProgress(EvidencePath(logs_->PathOf(rank.id)), now);
        if (report.has_value()) events_->RankStalled(rank.id, *report);
      });
    }
  }
}

// Advances the escalation of a stop by one step.
void RankSupervisor::Advance(Attempt* attempt, absl::Time now) {
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
  relay_.Forget(rank->id);
  rank->memory.Gone(now);
  rank->memory.Poll(options_.used_bytes, now);
}

RankSupervisor::Attempt* RankSupervisor::Find(const AttemptId& id) {
  const auto it = attempts_.find(id);
  return it == attempts_.end() ? nullptr : it->second.get();
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

std::vector<v1::HostedAttempt> RankSupervisor::ListHosted() const {
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
}

LaunchRefusal RankSupervisor::CheckLaunch(const v1::Launch& launch) const {
  if (draining_) return {"the agent is stopping"};
  return RefusalOf(launch,
                   {options_.device, options_.slots, UsedDevices(), history_.Newest(launch.job_id()),
                    options_.allowed_env},
                   options_.rank_binary, options_.plugin_dirs, options_.path_roots);
}

// After an exception, nothing of the launch is left and the exits of its ranks report the error.
void RankSupervisor::AcceptOrGiveUp(const v1::Launch& launch, absl::Duration limit) {
  const AttemptId id{launch.job_id(), launch.attempt()};
  const absl::Status caught = options_.errors.Catch({id, kAllRanks}, [&] { Accept(launch, limit); });
  if (caught.ok()) return;
  for (int i = 0; i < launch.ranks(); ++i) logs_->RankEnded({id, launch.first_rank() + i});
  Refuse(launch, {std::string(caught.message()), v1::ErrorClass::KIND_NODE, /*started=*/true});
}

void RankSupervisor::Accept(const v1::Launch& launch, absl::Duration limit) {
  const AttemptId id{launch.job_id(), launch.attempt()};
  // The exits of an attempt that has ended were reported.
  if (Find(id) != nullptr || (launch.resent() && history_.Newest(id.job_id) == id.attempt)) {
    LogInfo("ignored a repeated launch %s", ToString(id));
    return events_->LaunchAcknowledged({id, launch.first_rank()});
  }
  const LaunchRefusal refusal = CheckLaunch(launch);
  if (!refusal.reason.empty()) return Refuse(launch, refusal);
  history_.Take(id);

  auto attempt = std::make_unique<Attempt>();
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
  const AttemptId id{launch.job_id(), launch.attempt()};
  LogWarning("rejected a launch %s reason=%s", ToString(id), refusal.reason);
  const int ranks = std::min(launch.ranks(), kMaxRefusedRanks);
  const int newest = history_.Newest(launch.job_id()).value_or(0);
  for (int i = 0; i < ranks; ++i) {
    v1::RankExit exit;
    exit.set_rank(static_cast<int>(int64_t{launch.first_rank()} + i));
    exit.set_exit_code(kRefusedExitCode);
    exit.set_error(absl::StrCat("launch rejected: ", refusal.reason));
    if (refusal.fault != v1::ErrorClass::KIND_UNSPECIFIED) *exit.mutable_error_class() = CauseOf(refusal);
    exit.set_agent_stopping(draining_);
    if (newest >= launch.attempt() && !refusal.started) exit.set_newer_attempt(newest);
    exit.set_unix_nanos(absl::ToUnixNanos(clock_->Wall()));
    events_->RankExited({id, exit.rank()}, exit);
  }
}

void RankSupervisor::Start(Attempt* attempt, const v1::Launch& launch, int index) {
  Rank* rank = &attempt->ranks[static_cast<size_t>(index)];
  v1::RankLaunch start = LaunchOf(launch, index, options_.bind_address);
  start.set_files_dir(logs_->DirectoryOf(attempt->id));
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
    return ReportExit(attempt, rank, std::move(exit));
  }
  if (const std::optional<ProgressBudget> budget = ProgressBudgetOf(launch)) {
    rank->no_progress.emplace(*budget);
    rank->no_progress->Restart(clock_->Now());
  }
  events_->RankLaunched(rank->id, start, attempt->planned);
  NotifyPeerFailed(*attempt, rank);  // An earlier rank of this launch may have failed to start.
}

void RankSupervisor::HandleStop(const v1::Stop& stop) {
  const AttemptId id{stop.job_id(), stop.attempt()};
  Attempt* attempt = Find(id);
  if (attempt == nullptr) {
    // Not hosted here. Record it, so that a launch of it that is still under way is refused.
    history_.Take(id);
    events_->AttemptGone(id, /*stopped=*/true, v1::FreedMemory());
    return;
  }
  if (stop.has_hang() && !attempt->stopping) ReportHang(*attempt, stop.hang());
  const absl::Duration grace = stop.grace_ms() > 0 ? absl::Milliseconds(stop.grace_ms()) : options_.grace;
  BeginStop(attempt, grace, stop.save(), stop.reason());
}

void RankSupervisor::ReportHang(const Attempt& attempt, const v1::Stop::Hang& hang) {
  for (const Rank& rank : attempt.ranks) {
    const std::string object = hang.rank() < 0 ? "the job" : absl::StrCat("rank ", hang.rank());
    logs_->AddNotice(rank.id, absl::StrCat(object, " hangs: ", hang.verdict()));
    if (rank.id.rank == std::max(hang.rank(), 0)) events_->AttemptHung(attempt.id);
  }
}

void RankSupervisor::BeginStop(Attempt* attempt, absl::Duration grace, bool may_save,
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

void RankSupervisor::HandleLocate(const v1::Locate& locate) {
  Attempt* attempt = Find({locate.job_id(), locate.attempt()});
  if (attempt == nullptr) return;
  for (Rank& rank : attempt->ranks) {
    if (rank.process == nullptr || rank.exit_reported) continue;
    const absl::StatusOr<std::string> shown = rank.Position();
    std::string where = !shown.ok()      ? absl::StrCat("unknown position: ", shown.status().message())
                        : shown->empty() ? "no recorded instruction"
                                         : *shown;
    const bool stopped = rank.process->Stopped();
    const std::string notice = absl::StrCat(
        locate.reason(), stopped ? "; the rank was stopped by a signal in " : "; blocked in ", where);
    if (stopped) where = absl::StrCat("stopped by a signal; ", where);
    LogWarning("rank makes no progress %s: %s", ToString(rank.id), notice);
    logs_->AddNotice(rank.id, notice);
    events_->RankBlockedIn(rank.id, where);
  }
}

void RankSupervisor::HandleTrace(const v1::Trace& trace) {
  Attempt* attempt = Find({trace.job_id(), trace.attempt()});
  if (attempt == nullptr) return;
  v1::AgentToRank message;
  message.mutable_trace()->set_first_step(trace.first_step());
  message.mutable_trace()->set_steps(trace.steps());
  message.mutable_trace()->set_memory_snapshot(trace.memory_snapshot());
  LogInfo("tracing %s first_step=%d steps=%d", ToString(attempt->id), trace.first_step(), trace.steps());
  for (Rank& rank : attempt->ranks) rank.Send(message);
}

void RankSupervisor::AnswerGet(int64_t number, const std::string& value) {
  const std::optional<RendezvousRelay::Waiter> waiter = relay_.Answer(number);
  if (!waiter.has_value()) return;
  Attempt* attempt = Find(waiter->rank.of);
  if (attempt == nullptr) return;
  for (Rank& rank : attempt->ranks) {
    if (!(rank.id == waiter->rank) || rank.link == nullptr) continue;
    v1::AgentToRank message;
    message.mutable_store_value()->set_request(waiter->request);
    message.mutable_store_value()->set_value(value);
    rank.Send(message);
  }
}

void RankSupervisor::ReadRank(Attempt* attempt, Rank* rank, bool to_the_end) {
  bool drained = false;
  do {
    std::vector<v1::RankToAgent> messages;
    const absl::Status status = rank->link->Receive(&messages, &drained);
    for (const v1::RankToAgent& message : messages)
      Guard(attempt, rank->id.rank, [&] { HandleMessage(attempt, rank, message); });
    rank->EndLink(status);
  } while (to_the_end && !drained && rank->link != nullptr);
}

void RankSupervisor::HandleMessage(Attempt* attempt, Rank* rank, const v1::RankToAgent& message) {
  if (rank->no_progress.has_value()) rank->no_progress->OnMessage(clock_->Now());
  switch (message.body_case()) {
    case v1::RankToAgent::kStarted:
      if (attempt->planned.peak_bytes() > 0 &&
          message.started().memory_plan().peak_bytes() > attempt->planned.peak_bytes()) {
        LogWarning(
            "rank plans more memory than the coordinator; use the same version %s peak_bytes=%d "
            "planned_bytes=%d",
            ToString(rank->id), message.started().memory_plan().peak_bytes(), attempt->planned.peak_bytes());
      }
      events_->RankReady(rank->id, message.started());
      break;
    case v1::RankToAgent::kStep:
      rank->Take(message.step());
      events_->RankStepped(rank->id, attempt->world, message.step());
      break;
    case v1::RankToAgent::kTimeline:
      events_->RankTimeline(rank->id, message.timeline());
      break;
    case v1::RankToAgent::kSaved:
      events_->CheckpointSaved(rank->id, message.saved());
      break;
    case v1::RankToAgent::kTraceResult:
      events_->RankTraced(rank->id, message.trace_result());
      break;
    case v1::RankToAgent::kMeasured:
      events_->RankMeasured(rank->id, message.measured());
      break;
    case v1::RankToAgent::kFinished:
      rank->final_error = message.finished().error();
      if (message.finished().has_bad_step()) rank->bad_step = message.finished().bad_step();
      if (message.finished().has_error_class()) rank->fault = message.finished().error_class();
      rank->finished = true;
      break;
    case v1::RankToAgent::kStoreSet:
      rank->EndLink(TakeSet(attempt, *rank, message.store_set()));
      break;
    case v1::RankToAgent::kStoreGet:
      rank->EndLink(TakeGet(attempt, *rank, message.store_get()));
      break;
    case v1::RankToAgent::BODY_NOT_SET:
      break;  // From a newer rank; safe to ignore.
  }
}

absl::Status RankSupervisor::TakeSet(Attempt* attempt, const Rank& rank, const v1::StoreSet& set) {
  FSDPD_RETURN_IF_ERROR(relay_.Set(rank.id, set));
  if (!attempt->store.has_value()) {
    events_->StoreSet(attempt->id, set);
    return absl::OkStatus();
  }
  FSDPD_ASSIGN_OR_RETURN(const std::vector<int64_t> waiting, attempt->store->Set(set.key(), set.value()));
  for (const int64_t number : waiting) AnswerGet(number, set.value());
  return absl::OkStatus();
}

absl::Status RankSupervisor::TakeGet(Attempt* attempt, const Rank& rank, const v1::StoreGet& get) {
  FSDPD_ASSIGN_OR_RETURN(const int64_t number, relay_.Ask(rank.id, get));
  if (!attempt->store.has_value()) {
    events_->StoreGet(attempt->id, get.key(), number);
    return absl::OkStatus();
  }
  FSDPD_ASSIGN_OR_RETURN(const std::string* const value, attempt->store->Get(get.key(), number));
  if (value != nullptr) AnswerGet(number, *value);
  return absl::OkStatus();
}

void RankSupervisor::CheckExit(Attempt* attempt, Rank* rank) {
  const std::optional<ProcessEnd> end = rank->process->Exited();
  if (!end.has_value()) return;
  if (rank->link != nullptr)
    ReadRank(attempt, rank, /*to_the_end=*/true);  // Its final messages may still be unread.
  rank->link.reset();
  // Before the report, so that the slot is usually free when the coordinator reads it.
  rank->gone = rank->process->TreeGone();
  if (rank->gone) RankLeft(rank, clock_->Now());
  ReportExit(attempt, rank, rank->ExitOf(*end, logs_->Tail(rank->id, kLogTailLines)));
}

void RankSupervisor::ReportExit(Attempt* attempt, Rank* rank, v1::RankExit exit) {
  exit.set_rank(rank->id.rank);
  exit.set_unix_nanos(absl::ToUnixNanos(clock_->Wall()));
  const bool failed = exit.signal() != 0 || exit.exit_code() != 0 || !exit.error().empty();
  const bool died = failed && attempt->stopping && !rank->terminated && !Left(exit);
  exit.set_cancelled(attempt->stopping && !died);
  exit.set_drained(draining_ && failed && exit.cancelled() && !rank->peer_failure_sent);
  exit.set_peer_failed(rank->peer_failure_sent);
  if (failed) {
    rank->SavePosition();
    exit.set_position(rank->position);
  }
  LogInfo("rank exited %s %s", ToString(rank->id), Describe(exit));
  events_->RankExited(rank->id, exit);
  rank->exit_reported = true;
  // A rank that has finished does not shorten the time of the others: rank 0 may be exporting. If a rank
  // died, no checkpoint can be committed any more.
  if (attempt->stopping && failed) {
    const absl::Time now = clock_->Now();
    attempt->terminate_at = std::min(attempt->terminate_at, died ? now : now + kPeerExitTime);
  }
  const bool left = exit.signal() == 0 && exit.exit_code() == kPeerFailedExitCode;
  if (!failed || attempt->cause_seen || (left && attempt->failed_rank.has_value())) return;
  attempt->failed_rank = exit.rank();
  attempt->cause_seen = !left;
  for (Rank& peer : attempt->ranks) NotifyPeerFailed(*attempt, &peer);
}

// A rank that is blocked and does not read it is stopped by the coordinator later.
void RankSupervisor::NotifyPeerFailed(const Attempt& attempt, Rank* rank) {
  if (!attempt.failed_rank.has_value() || attempt.stopping || rank->process == nullptr || rank->exit_reported)
    return;
  rank->peer_failure_sent = attempt.cause_seen;
  rank->SavePosition();
  v1::AgentToRank message;
  message.mutable_peer_failed()->set_rank(*attempt.failed_rank);
  rank->Send(message);
}

}  // namespace fsdpd
