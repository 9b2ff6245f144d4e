#include "tests/sim/ranks.h"

#include <absl/strings/match.h>
#include <errno.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>

#include "base/check.h"
#include "base/rank/exit_code.h"

namespace fsdpd::sim {
namespace {

constexpr absl::Duration kLockTimeout = absl::Minutes(3);
constexpr double kHealthyFlops = 2e12, kSlowFlops = 0.5e12;

class SimulatedBody : public RankBody {
 public:
  SimulatedBody(std::shared_ptr<RankLife> life, UniqueFd socket)
      : life_(std::move(life)), socket_(std::move(socket)) {}
  ~SimulatedBody() override { life_->Signal(SIGKILL); }

  pid_t pid() const override { return 0; }
  int pidfd() const override { return life_->ended_fd(); }
  UniqueFd TakeSocket() override { return std::move(socket_); }
  std::optional<ProcessEnd> Exited() const override { return life_->end(); }
  char state() const override { return life_->stopped() ? 'T' : 'S'; }
  bool Stopped() const override { return life_->alive() && life_->stopped(); }
  void SignalTree(int signal) override { life_->Signal(signal); }
  bool TreeGone() override { return life_->gone(); }
  Evidence WriteEvidence(const std::string&, const std::string&) override { return nullptr; }

 private:
  const std::shared_ptr<RankLife> life_;
  UniqueFd socket_;
};

std::string AddressKey(int rank) { return absl::StrCat("address/", rank); }

}  // namespace

RankLife::RankLife(Ranks* ranks, const std::string& node, std::function<void()> wake, UniqueFd socket)
    : ranks_(ranks),
      world_(ranks->world_),
      node_(node),
      wake_(std::move(wake)),
      socket_(std::move(socket)),
      ended_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      ignores_sigterm_(world_->dice.OneIn(15)) {
  FSDPD_CHECK(ended_.valid());
}

RankLife::~RankLife() = default;

void RankLife::Later(absl::Duration least, absl::Duration most, std::function<void(RankLife*)> what) {
  world_->After(world_->dice.Between(least, most), shared_from_this(),
                std::function<void(RankLife*)>([what = std::move(what)](RankLife* self) {
                  if (!self->alive()) return;
                  if (!self->stopped_) return what(self);
                  // Suspended: retry later.
                  self->Later(absl::Milliseconds(500), absl::Milliseconds(500), what);
                }));
}

bool RankLife::gone() const { return end_.has_value() && world_->now() >= gone_at_; }

void RankLife::Read() {
  if (!alive() || stopped_ || !socket_.valid()) return;
  char bytes[4096];
  ssize_t n;
  while ((n = recv(socket_.get(), bytes, sizeof bytes, MSG_DONTWAIT)) > 0)
    received_.Append(bytes, static_cast<size_t>(n));
  const bool closed = n == 0 || (errno != EAGAIN && errno != EWOULDBLOCK);
  std::string payload;
  bool complete = false;
  while (received_.Next(&payload, &complete).ok() && complete) {
    v1::AgentToRank message;
    FSDPD_CHECK(message.ParseFromString(payload));
    Take(message);
    if (!alive()) return;
  }
  if (!closed) return;
  socket_ = UniqueFd();
  Later(absl::ZeroDuration(), absl::Milliseconds(200),
        [](RankLife* self) { self->End(1, 0, "lost the connection to the agent"); });
}

void RankLife::Take(const v1::AgentToRank& message) {
  switch (message.body_case()) {
    case v1::AgentToRank::kLaunch:
      launch_ = message.launch();
      id_ = {{launch_.job_id(), launch_.attempt()}, launch_.rank()};
      launched_ = true;
      world_->Log("rank started ", ToString(id_), " node=", node_, " device=", launch_.device());
      ranks_->begun_(*this);
      return Later(absl::Milliseconds(50), absl::Seconds(2),
                   [](RankLife* self) { self->launch_.preflight() ? self->Measure() : self->Begin(); });
    case v1::AgentToRank::kStoreValue:
      awaited_.erase(message.store_value().request());
      if (phase_ == Phase::kRendezvous && awaited_.empty()) Started();
      return;
    case v1::AgentToRank::kPeerFailed: {
      const int rank = message.peer_failed().rank();
      return Later(absl::ZeroDuration(), absl::Milliseconds(500), [rank](RankLife* self) {
        self->End(kPeerFailedExitCode, 0, absl::StrCat("rank ", rank, " failed"));
      });
    }
    case v1::AgentToRank::kLeave:
      leave_requested_ = true;
      if (phase_ == Phase::kStarted || phase_ == Phase::kRendezvous)
        Later(absl::ZeroDuration(), absl::Milliseconds(500),
              [](RankLife* self) { self->End(kStoppedExitCode, 0, "left before the first step"); });
      return;
    case v1::AgentToRank::kTrace:
    case v1::AgentToRank::BODY_NOT_SET:
      return;
  }
}

void RankLife::Begin() {
  const std::string& name = launch_.spec().name();
  if (absl::StartsWith(name, "broken")) {
    v1::ErrorClass fault;
    fault.set_kind(v1::ErrorClass::KIND_CONFIGURATION);
    fault.set_permanent(world_->dice.OneIn(2));
    fault.set_node_only(world_->dice.OneIn(2));
    return End(1, 0, "invalid program", fault);
  }
  if (absl::StartsWith(name, "flaky") && world_->dice.OneIn(2))
    Later(absl::ZeroDuration(), absl::Seconds(40), [](RankLife* self) {
      const bool crash = self->world_->dice.OneIn(2);
      self->End(crash ? 0 : 1, crash ? SIGSEGV : 0, crash ? "" : "something went wrong");
    });
  if (absl::StartsWith(name, "hangs") && world_->dice.OneIn(3))
    Later(absl::Seconds(1), absl::Seconds(30), [](RankLife* self) { self->Signal(SIGSTOP); });
  asked_for_lock_ = world_->now();
  LockDirectory();
}

// A preflight measurement, usually of a healthy device.
void RankLife::Measure() {
  v1::RankToAgent message;
  message.mutable_measured()->set_device(launch_.device());
  message.mutable_measured()->set_name("cpu");
  message.mutable_measured()->set_matmul_flops(world_->dice.OneIn(20) ? kSlowFlops : kHealthyFlops);
  Send(message);
  End(0, 0, "");
}

void RankLife::LockDirectory() {
  if (id_.rank == 0 && !DirectoryName().empty()) {
    Ranks::Directory& directory = ranks_->directories_[DirectoryName()];
    const std::shared_ptr<RankLife> holder = directory.holder.lock();
    if (holder != nullptr && holder->alive()) {
      if (world_->now() - asked_for_lock_ > kLockTimeout)
        return End(1, 0, "checkpoint directory: locked by another process");
      return Later(absl::Seconds(1), absl::Seconds(1), [](RankLife* self) { self->LockDirectory(); });
    }
    directory.holder = weak_from_this();
  }
  JoinRendezvous();
}

void RankLife::JoinRendezvous() {
  phase_ = Phase::kRendezvous;
  if (leave_requested_) return;
  v1::RankToAgent set;
  set.mutable_store_set()->set_key(AddressKey(id_.rank));
  set.mutable_store_set()->set_value(absl::StrCat(node_, ":", id_.rank));
  Send(set);
  for (int peer = 0; peer < launch_.world_size(); ++peer) {
    if (peer != id_.rank) awaited_.insert(peer + 1);
  }
  const std::set<int64_t> asked = awaited_;
  for (const int64_t request : asked) {
    v1::RankToAgent get;
    get.mutable_store_get()->set_key(AddressKey(static_cast<int>(request - 1)));
    get.mutable_store_get()->set_request(request);
    Send(get);
  }
  if (asked.empty()) Started();
}

void RankLife::Started() {
  phase_ = Phase::kTraining;
  const std::set<int64_t> saved = ranks_->Saved(DirectoryName());
  step_ = saved_ = saved.empty() ? 0 : *saved.rbegin();
  v1::RankToAgent message;
  message.mutable_started();
  if (step_ > 0) message.mutable_started()->mutable_restored()->set_step(step_);
  Send(message);
  if (id_.rank == 0) Later(absl::Seconds(1), absl::Seconds(2), [](RankLife* self) { self->Step(); });
}

// Rank 0 runs the step for all ranks.
void RankLife::Step() {
  const std::vector<std::shared_ptr<RankLife>> group = ranks_->Of(id_.of);
  const auto again = [this](absl::Duration least, absl::Duration most) {
    Later(least, most, [](RankLife* self) { self->Step(); });
  };
  const bool all = static_cast<int>(group.size()) == launch_.world_size() &&
                   std::all_of(group.begin(), group.end(), [](const auto& rank) {
                     return rank->alive() && !rank->stopped_ && rank->phase_ == Phase::kTraining;
                   });
  if (!all) return again(absl::Milliseconds(300), absl::Milliseconds(300));
  const bool leaves =
      std::any_of(group.begin(), group.end(), [](const auto& rank) { return rank->leave_requested_; });
  if (leaves) return Save(/*leaves=*/true);
  if (step_ >= launch_.spec().train().steps()) return Finish();
  ++step_;
  for (const auto& rank : group) {
    rank->step_ = step_;
    v1::RankToAgent message;
    message.mutable_step()->set_step(step_);
    message.mutable_step()->set_step_seconds(2);
    message.mutable_step()->set_loss(1);
    rank->Send(message);
  }
  if (!DirectoryName().empty() && step_ % 4 == 0) Save(/*leaves=*/false);
  if (alive()) again(absl::Seconds(1), absl::Seconds(3));
}

// Commits first and reports later: the rank may die in between.
void RankLife::Save(bool leaves) {
  if (!DirectoryName().empty() && saved_ < step_) {
    ranks_->directories_[DirectoryName()].steps.insert(step_);
    saved_ = step_;
    world_->Log("saved ", ToString(id_.of), " step=", step_);
    const int64_t step = step_;
    Later(absl::ZeroDuration(), absl::Milliseconds(300), [step](RankLife* self) {
      v1::RankToAgent message;
      message.mutable_saved()->set_step(step);
      message.mutable_saved()->set_path(absl::StrCat(self->DirectoryName(), "/step-", step));
      self->Send(message);
    });
  }
  if (!leaves) return;
  for (const auto& rank : ranks_->Of(id_.of)) {
    rank->phase_ = Phase::kLeaving;
    if (!rank->leave_requested_) continue;
    rank->Later(absl::Milliseconds(300), absl::Seconds(1), [](RankLife* self) {
      self->End(kStoppedExitCode, 0, absl::StrCat("left after step ", self->step_));
    });
  }
}

void RankLife::Finish() {
  Save(/*leaves=*/false);
  for (const auto& rank : ranks_->Of(id_.of)) {
    rank->phase_ = Phase::kLeaving;
    rank->Later(absl::Milliseconds(300), absl::Seconds(2), [](RankLife* self) {
      ++self->ranks_->finished_[self->id_.of];
      self->End(0, 0, "");
    });
  }
}

void RankLife::OnPeerLost(int rank) {
  Later(absl::Milliseconds(20), absl::Milliseconds(900), [rank](RankLife* self) {
    if (self->phase_ == Phase::kTraining || self->phase_ == Phase::kLeaving)
      self->End(1, 0, absl::StrCat("lost the connection to rank ", rank));
  });
}

void RankLife::Signal(int signal) {
  if (!alive()) {
    if (signal == SIGKILL) gone_at_ = std::min(gone_at_, world_->now());
    return;
  }
  if (signal == SIGSTOP || signal == SIGCONT) {
    stopped_ = signal == SIGSTOP;
    if (stopped_ && launched_) world_->Log("rank suspended ", ToString(id_));
    if (!stopped_ && !std::exchange(pending_, {}).empty()) Signal(SIGTERM);
    return;
  }
  if (signal == SIGKILL) return End(0, SIGKILL, "");
  if (stopped_) return pending_.push_back(signal);
  if (ignores_sigterm_) return;
  Later(absl::ZeroDuration(), absl::Milliseconds(500),
        [](RankLife* self) { self->End(kStoppedExitCode, 0, "stopped by SIGTERM"); });
}

void RankLife::End(int exit_code, int signal, const std::string& error, std::optional<v1::ErrorClass> fault) {
  if (signal == 0) {
    v1::RankToAgent last;
    last.mutable_finished()->set_error(error);
    if (fault.has_value()) *last.mutable_finished()->mutable_error_class() = *fault;
    Send(last);
  }
  ProcessEnd end;
  end.exit_code = exit_code;
  end.signal = signal;
  end_ = end;
  const bool lingers = signal != SIGKILL && world_->dice.OneIn(6);
  gone_at_ = world_->now() + (lingers ? world_->dice.Between(absl::Milliseconds(10), absl::Seconds(3))
                                      : absl::ZeroDuration());
  if (launched_)
    world_->Log("rank ended ", ToString(id_), " code=", exit_code, " signal=", signal, " ", error);
  socket_ = UniqueFd();
  FSDPD_CHECK(eventfd_write(ended_.get(), 1) == 0);
  if (launched_ && (exit_code != 0 || signal != 0)) {
    for (const auto& peer : ranks_->Of(id_.of)) {
      if (peer->alive()) peer->OnPeerLost(id_.rank);
    }
  }
  wake_();
}

void RankLife::Send(const v1::RankToAgent& message) {
  if (!socket_.valid()) return;
  std::string bytes;
  FSDPD_CHECK(AppendFrame(message, &bytes).ok());
  // Messages to an agent that has closed the socket are lost.
  if (send(socket_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL) >= 0) wake_();
}

std::unique_ptr<RankBody> Ranks::Spawn(const std::string& node, std::function<void()> wake) {
  int pair[2];
  FSDPD_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
  const auto life = std::make_shared<RankLife>(this, node, std::move(wake), UniqueFd(pair[1]));
  lives_.erase(std::remove_if(lives_.begin(), lives_.end(), [](const auto& each) { return each->gone(); }),
               lives_.end());
  lives_.push_back(life);
  return std::make_unique<SimulatedBody>(life, UniqueFd(pair[0]));
}

void Ranks::ReadAll(const std::string& node) {
  const std::vector<std::shared_ptr<RankLife>> lives = lives_;
  for (const auto& life : lives) {
    if (life->node() == node) life->Read();
  }
}

void Ranks::KillAll(const std::string& node) {
  agent_ended_[node] = world_->now();
  const std::vector<std::shared_ptr<RankLife>> lives = lives_;
  for (const auto& life : lives) {
    if (life->node() == node) life->Signal(SIGKILL);
  }
}

std::vector<std::shared_ptr<RankLife>> Ranks::Alive() const {
  std::vector<std::shared_ptr<RankLife>> alive;
  for (const auto& life : lives_) {
    if (life->alive() && life->launched()) alive.push_back(life);
  }
  return alive;
}

std::vector<std::shared_ptr<RankLife>> Ranks::Left() const {
  std::vector<std::shared_ptr<RankLife>> left;
  for (const auto& life : lives_) {
    if (!life->gone() && life->launched()) left.push_back(life);
  }
  return left;
}

std::vector<std::shared_ptr<RankLife>> Ranks::Of(const AttemptId& attempt) const {
  std::vector<std::shared_ptr<RankLife>> group;
  for (const auto& life : lives_) {
    if (life->launched() && life->id().of == attempt) group.push_back(life);
  }
  return group;
}

int Ranks::Finished(const AttemptId& attempt) const {
  const auto it = finished_.find(attempt);
  return it == finished_.end() ? 0 : it->second;
}

absl::Time Ranks::AgentEnded(const std::string& node) const {
  const auto it = agent_ended_.find(node);
  return it == agent_ended_.end() ? absl::InfinitePast() : it->second;
}

std::set<int64_t> Ranks::Saved(const std::string& directory) const {
  const auto it = directories_.find(directory);
  return it == directories_.end() ? std::set<int64_t>() : it->second.steps;
}

}  // namespace fsdpd::sim
