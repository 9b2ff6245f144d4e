#include "tests/sim/run.h"

#include <signal.h>

#include <filesystem>
#include <memory>
#include <utility>

#include "base/log.h"
#include "base/temp_dir.h"
#include "tests/sim/coordinator.h"
#include "tests/sim/node.h"
#include "tests/sim/people.h"
#include "tests/sim/ranks.h"
#include "tests/sim/referee.h"
#include "tests/sim/world.h"

namespace fsdpd::sim {
namespace {

constexpr absl::Duration kTrouble = absl::Seconds(80);
// Attempts wait for a minute, a directory's lock for three, and a rank that makes its first steps may stand
// still for ten: an end that takes longer is none.
constexpr absl::Duration kPatience = absl::Minutes(20);

enum class Fault {
  kKillAgent,
  kDrainAgent,
  kStopAgent,
  kCut,
  kCutAll,
  kBreak,
  kKillCoordinator,
  kKillInAWrite,
  kStopCoordinator,
  kStillCoordinator,
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
  void Trouble();
  void Strike(Fault fault);
  void StrikeAgent(Fault fault, Node* node);
  void StrikeCoordinator(Fault fault);
  void StrikeRank(Fault fault);
  void SayWhatIsStale(Node* node);
  void Calm();
  std::string WhyNotOver();
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
  std::unique_ptr<People> people_;
  std::vector<Fault> faults_;  // Those of this run.
  bool calm_ = false;
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
  TakeLog([this](Severity, absl::string_view line) { world_.Tell("  ", line); });
  referee_.Watch(&ranks_);
  std::vector<std::string> names;
  for (const auto& [name, slots] : slots_) {
    nodes_.push_back(std::make_unique<Node>(&world_, &ranks_, &coordinator_, name, slots, dir_.path()));
    names.push_back(name);
  }
  people_ = std::make_unique<People>(&world_, &coordinator_, &referee_, names);
  // Few kinds of fault in a run meet each other more often than all of them.
  for (int i = 0; i < static_cast<int>(Fault::kCount); ++i) {
    if (world_.dice.OneIn(3)) faults_.push_back(static_cast<Fault>(i));
  }
}

void Cluster::Trouble() {
  if (calm_) return;
  if (!faults_.empty() && !world_.dice.OneIn(3))
    Strike(faults_[static_cast<size_t>(world_.dice.Below(static_cast<int>(faults_.size())))]);
  if (world_.dice.OneIn(2)) people_->AskSomething();
  world_.After(Some(0.2, 5), [this] { Trouble(); });
}

void Cluster::Strike(Fault fault) {
  Node* const node = nodes_[static_cast<size_t>(world_.dice.Below(static_cast<int>(nodes_.size())))].get();
  switch (fault) {
    case Fault::kKillAgent:
    case Fault::kDrainAgent:
    case Fault::kStopAgent:
    case Fault::kCut:
    case Fault::kCutAll:
    case Fault::kBreak:
    case Fault::kTearUndelivered:
    case Fault::kStaleMessage:
      return StrikeAgent(fault, node);
    case Fault::kDates: {
      MachineClock* const clock = world_.dice.OneIn(2) ? node->clock() : coordinator_.clock();
      if (clock == coordinator_.clock()) referee_.DateSet();
      return clock->SetDate(world_.dice.Between(-absl::Hours(30), absl::Hours(30)));
    }
    case Fault::kKillRank:
    case Fault::kStopRank:
      return StrikeRank(fault);
    default:
      return StrikeCoordinator(fault);
  }
}

void Cluster::StrikeAgent(Fault fault, Node* node) {
  switch (fault) {
    case Fault::kKillAgent:
      return node->Kill();
    case Fault::kDrainAgent:
      return node->Drain();
    case Fault::kStopAgent:
      return node->StandStill(Some(1, 25));
    case Fault::kCut:
      return node->Cut(Some(0.5, 45));
    case Fault::kBreak:
      return node->BreakStream();
    case Fault::kTearUndelivered:
      return node->TearUndelivered();
    case Fault::kStaleMessage:
      return SayWhatIsStale(node);
    default: {
      const absl::Duration time = Some(0.5, 30);
      for (const auto& each : nodes_) each->Cut(time);
    }
  }
}

void Cluster::StrikeCoordinator(Fault fault) {
  switch (fault) {
    case Fault::kKillCoordinator:
      return coordinator_.Kill();
    case Fault::kKillInAWrite:
      return coordinator_.KillInAWrite(1 + world_.dice.Below(12));
    case Fault::kStopCoordinator:
      return coordinator_.Stop();
    case Fault::kStillCoordinator:
      return coordinator_.StandStill(Some(1, 25));
    default:
      coordinator_.SetDiskFull(true);
      world_.After(Some(0.5, 15), [this] { coordinator_.SetDiskFull(false); });
  }
}

void Cluster::StrikeRank(Fault fault) {
  const std::vector<std::shared_ptr<RankLife>> alive = ranks_.Alive();
  if (alive.empty()) return;
  const auto rank = alive[static_cast<size_t>(world_.dice.Below(static_cast<int>(alive.size())))];
  if (fault == Fault::kKillRank) return rank->Signal(SIGKILL);
  rank->Signal(SIGSTOP);
  world_.After(Some(1, 30), [rank] { rank->Signal(SIGCONT); });
}

// As one who was another stream's member, of a job that is there now.
void Cluster::SayWhatIsStale(Node* node) {
  Stream* const stream = node->stream();
  const std::vector<std::shared_ptr<RankLife>> alive = ranks_.Alive();
  if (stream == nullptr || stream->epoch() < 2 || alive.empty()) return;
  const RankId id = alive[0]->id();
  v1::AgentMessage message;
  message.set_epoch(stream->epoch() - 1);
  message.mutable_stopped()->set_job_id(id.of.job_id);
  message.mutable_stopped()->set_attempt(id.of.attempt);
  world_.Tell("a stale message on the stream of ", node->name());
  stream->SayUp(std::move(message));
}

void Cluster::Calm() {
  calm_ = true;
  world_.Tell("--- calm ---");
  coordinator_.Heal();
  for (const auto& node : nodes_) node->Heal();
  people_->LetAllGoOn();
}

std::string Cluster::WhyNotOver() {
  std::string why = people_->WhyNotOver();
  if (!ranks_.Alive().empty()) why += absl::StrCat("; ", ToString(ranks_.Alive()[0]->id()), " lives");
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
  people_->SubmitSome(3 + world_.dice.Below(6), kTrouble * 2 / 3);
  world_.After(Some(1, 4), [this] { Trouble(); });
  world_.After(kTrouble, [this] { Calm(); });
  absl::Time look = World::Start() + kTrouble + absl::Seconds(30);
  std::string why;
  while (!world_.violated() && world_.RunNext()) {
    if (world_.now() < look) continue;
    look = world_.now() + absl::Seconds(5);
    why = WhyNotOver();
    if (why.empty()) break;
    if (world_.age() > kTrouble + kPatience)
      world_.Violate(absl::StrCat("not over after ", absl::FormatDuration(kPatience), " of quiet: ", why));
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
