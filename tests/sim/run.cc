#include "tests/sim/run.h"

#include <signal.h>

#include <filesystem>
#include <memory>
#include <utility>

#include "base/log.h"
#include "base/temp_dir.h"
#include "tests/sim/coordinator.h"
#include "tests/sim/node.h"
#include "tests/sim/ranks.h"
#include "tests/sim/referee.h"
#include "tests/sim/users.h"
#include "tests/sim/world.h"

namespace fsdpd::sim {
namespace {

constexpr absl::Duration kFaultPeriod = absl::Seconds(80);
// Delays of attempts take up to 1 minute, a directory's lock 3, and a hang during the first steps 10. A job
// that takes longer is stuck.
constexpr absl::Duration kSettleLimit = absl::Minutes(20);

enum class Fault {
  kKillAgent,
  kDrainAgent,
  kStopAgent,
  kCut,
  kCutAll,
  kBreakStream,
  kKillCoordinator,
  kKillInAWrite,
  kStopCoordinator,
  kSuspendCoordinator,
  kFullDisk,
  kDates,
  kKillRank,
  kStopRank,
  kTearUndelivered,
  kStaleMessage,
  kCount,
};

class Cluster {
 public:
  Cluster(uint64_t seed, bool verbose);
  ~Cluster() { world_.End(); }
  Outcome Play();

 private:
  void InjectFaults();
  void Inject(Fault fault);
  void InjectIntoAgent(Fault fault, Node* node);
  void InjectIntoCoordinator(Fault fault);
  void InjectIntoRank(Fault fault);
  void SendStaleMessage(Node* node);
  void StopFaults();
  std::string UnfinishedReason();
  absl::Duration Some(double least_s, double most_s) {
    return world_.dice.Between(absl::Seconds(least_s), absl::Seconds(most_s));
  }

  TempDir dir_;
  World world_;
  std::map<std::string, int> slots_;
  Referee referee_;
  Ranks ranks_;
  Coordinator coordinator_;
  std::vector<std::unique_ptr<Node>> nodes_;
  std::unique_ptr<Users> users_;
  std::vector<Fault> faults_;  // Kinds of faults in this run.
  bool faults_stopped_ = false;
};

std::map<std::string, int> SlotsOf(World* world) {
  std::map<std::string, int> slots;
  const int nodes = 2 + world->dice.Below(3);
  for (int i = 0; i < nodes; ++i) slots[absl::StrCat("node-", i)] = 1 + world->dice.Below(2);
  return slots;
}

Cluster::Cluster(uint64_t seed, bool verbose)
    : world_(seed),
      slots_(SlotsOf(&world_)),
      referee_(&world_, slots_),
      ranks_(&world_, [this](const RankLife& rank) { referee_.Begun(rank); }),
      coordinator_(&world_, &referee_, dir_.File("state")) {
  world_.set_verbose(verbose);
  TakeLog([this](Severity, absl::string_view line) { world_.Log("  ", line); });
  referee_.Watch(&ranks_);
  std::vector<std::string> names;
  for (const auto& [name, slots] : slots_) {
    nodes_.push_back(std::make_unique<Node>(&world_, &ranks_, &coordinator_, name, slots, dir_.path()));
    names.push_back(name);
  }
  users_ = std::make_unique<Users>(&world_, &coordinator_, &referee_, names);
  // A run with few kinds of faults combines each pair more often than a run with all of them.
  for (int i = 0; i < static_cast<int>(Fault::kCount); ++i) {
    if (world_.dice.OneIn(3)) faults_.push_back(static_cast<Fault>(i));
  }
}

void Cluster::InjectFaults() {
  if (faults_stopped_) return;
  if (!faults_.empty() && !world_.dice.OneIn(3))
    Inject(faults_[static_cast<size_t>(world_.dice.Below(static_cast<int>(faults_.size())))]);
  if (world_.dice.OneIn(2)) users_->MakeRandomRequest();
  world_.After(Some(0.2, 5), [this] { InjectFaults(); });
}

void Cluster::Inject(Fault fault) {
  Node* const node = nodes_[static_cast<size_t>(world_.dice.Below(static_cast<int>(nodes_.size())))].get();
  switch (fault) {
    case Fault::kKillAgent:
    case Fault::kDrainAgent:
    case Fault::kStopAgent:
    case Fault::kCut:
    case Fault::kCutAll:
    case Fault::kBreakStream:
    case Fault::kTearUndelivered:
    case Fault::kStaleMessage:
      return InjectIntoAgent(fault, node);
    case Fault::kDates: {
      MachineClock* const clock = world_.dice.OneIn(2) ? node->clock() : coordinator_.clock();
      if (clock == coordinator_.clock()) referee_.DateSet();
      return clock->SetDate(world_.dice.Between(-absl::Hours(30), absl::Hours(30)));
    }
    case Fault::kKillRank:
    case Fault::kStopRank:
      return InjectIntoRank(fault);
    default:
      return InjectIntoCoordinator(fault);
  }
}

void Cluster::InjectIntoAgent(Fault fault, Node* node) {
  switch (fault) {
    case Fault::kKillAgent:
      return node->Kill();
    case Fault::kDrainAgent:
      return node->Drain();
    case Fault::kStopAgent:
      return node->Suspend(Some(1, 25));
    case Fault::kCut:
      return node->Disconnect(Some(0.5, 45));
    case Fault::kBreakStream:
      return node->BreakStream();
    case Fault::kTearUndelivered:
      return node->TearUndelivered();
    case Fault::kStaleMessage:
      return SendStaleMessage(node);
    default: {
      const absl::Duration time = Some(0.5, 30);
      for (const auto& each : nodes_) each->Disconnect(time);
    }
  }
}

void Cluster::InjectIntoCoordinator(Fault fault) {
  switch (fault) {
    case Fault::kKillCoordinator:
      return coordinator_.Kill();
    case Fault::kKillInAWrite:
      return coordinator_.KillInAWrite(1 + world_.dice.Below(12));
    case Fault::kStopCoordinator:
      return coordinator_.Stop();
    case Fault::kSuspendCoordinator:
      return coordinator_.Suspend(Some(1, 25));
    default:
      coordinator_.SetDiskFull(true);
      world_.After(Some(0.5, 15), [this] { coordinator_.SetDiskFull(false); });
  }
}

void Cluster::InjectIntoRank(Fault fault) {
  const std::vector<std::shared_ptr<RankLife>> alive = ranks_.Alive();
  if (alive.empty()) return;
  const auto rank = alive[static_cast<size_t>(world_.dice.Below(static_cast<int>(alive.size())))];
  if (fault == Fault::kKillRank) return rank->Signal(SIGKILL);
  rank->Signal(SIGSTOP);
  world_.After(Some(1, 30), [rank] { rank->Signal(SIGCONT); });
}

// A message with the generation of an earlier stream, about an existing job.
void Cluster::SendStaleMessage(Node* node) {
  Stream* const stream = node->stream();
  const std::vector<std::shared_ptr<RankLife>> alive = ranks_.Alive();
  if (stream == nullptr || stream->stream_generation() < 2 || alive.empty()) return;
  const RankId id = alive[0]->id();
  v1::AgentMessage message;
  message.set_stream_generation(stream->stream_generation() - 1);
  message.mutable_stopped()->set_job_id(id.of.job_id);
  message.mutable_stopped()->set_attempt(id.of.attempt);
  world_.Log("stale message sent node=", node->name());
  stream->SendUp(std::move(message));
}

void Cluster::StopFaults() {
  faults_stopped_ = true;
  world_.Log("--- faults stopped ---");
  coordinator_.Heal();
  for (const auto& node : nodes_) node->Heal();
  users_->ResumeAll();
}

std::string Cluster::UnfinishedReason() {
  std::string why = users_->UnfinishedReason();
  if (!ranks_.Alive().empty()) why += absl::StrCat("; ", ToString(ranks_.Alive()[0]->id()), " is alive");
  for (const auto& node : nodes_) {
    if (!node->up() || !node->idle()) why += absl::StrCat("; ", node->name(), " is not idle");
  }
  return why;
}

Outcome Cluster::Play() {
  coordinator_.Start();
  for (const auto& node : nodes_) {
    world_.After(Some(0, 3), [each = node.get()] { each->Start(); });
  }
  users_->SubmitJobs(3 + world_.dice.Below(6), kFaultPeriod * 2 / 3);
  world_.After(Some(1, 4), [this] { InjectFaults(); });
  world_.After(kFaultPeriod, [this] { StopFaults(); });
  absl::Time look = World::Start() + kFaultPeriod + absl::Seconds(30);
  std::string why;
  while (!world_.violated() && world_.RunNext()) {
    if (world_.now() < look) continue;
    look = world_.now() + absl::Seconds(5);
    why = UnfinishedReason();
    if (why.empty()) break;
    if (world_.age() > kFaultPeriod + kSettleLimit)
      world_.ReportViolation(
          absl::StrCat("not finished ", absl::FormatDuration(kSettleLimit), " after the last fault: ", why));
  }
  Outcome outcome;
  outcome.violation = world_.violation();
  outcome.lines.assign(world_.lines().begin(), world_.lines().end());
  outcome.hash = world_.hash();
  outcome.virtual_seconds = absl::ToDoubleSeconds(world_.age());
  outcome.jobs = static_cast<int>(referee_.Accepted().size());
  TakeLog(nullptr);
  return outcome;
}

}  // namespace

Outcome Run(uint64_t seed, bool verbose) { return Cluster(seed, verbose).Play(); }

}  // namespace fsdpd::sim
