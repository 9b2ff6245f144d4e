#include "tests/sim/coordinator.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/check.h"
#include "coordinator/admission/admission.h"
#include "coordinator/attempt/slot_count.h"
#include "coordinator/nodes/known_node.h"
#include "coordinator/store/sqlite_store.h"
#include "fsdp/plan/plan.h"

namespace fsdpd::sim {
namespace {

// Plans are pure functions of these arguments and take milliseconds, so all runs of the process share them.
Plan PlanOnce(const v1::JobSpec& spec, int64_t budget, const std::vector<std::string>& unread) {
  static auto& plans = *new std::map<std::string, Plan>;
  const std::string key = absl::StrCat(budget, "/", spec.SerializeAsString());
  auto it = plans.find(key);
  if (it == plans.end()) it = plans.emplace(key, MakePlan(spec, budget, unread)).first;
  return it->second;
}

ReconcilerOptions OptionsWith(absl::Duration tick, bool measures) {
  ReconcilerOptions options;
  options.tick = tick;
  options.own_thread = false;
  if (measures) options.preflight.devices = {v1::DEVICE_CPU};
  options.preflight.limit = absl::Seconds(40);
  options.preflight.floors = {{"cpu", "matmul_tflops", 1}};
  return options;
}

RanksByProject QuotasOf(World* world) {
  if (!world->shared()) return {};
  return {{"red", 1 + world->dice.Below(2)}, {"blue", 2}};
}

}  // namespace

// One process of the coordinator, with the parts of Server::Parts.
struct CoordinatorLife {
  CoordinatorLife(Coordinator* owner, std::unique_ptr<StateStore> opened)
      : store(std::move(opened)),
        nodes(store->generation(), &owner->clock_),
        logs(&nodes),
        admission([this] { return IdleSlots(nodes.Snapshot()); }, PlanOnce),
        reconciler(OptionsWith(owner->tick_, owner->measures_),
                   {store.get(), &nodes, &rendezvous, &board, &owner->clock_,
                    [](const v1::JobSpec& spec, int64_t budget) { return PlanOnce(spec, budget, {}); },
                    [owner] { return owner->quotas_; }}),
        api({&admission, store.get(), &board, &reconciler, &nodes, &logs, &traces, &timelines, &owner->clock_,
             /*meters=*/nullptr,
             [owner](absl::string_view name) { return absl::StrCat(name, "-", ++owner->jobs_); }}) {}

  std::unique_ptr<StateStore> store;
  NodeRegistry nodes;
  Rendezvous rendezvous;
  JobBoard board;
  LogRelay logs;
  TraceRelay traces;
  TimelineBoard timelines{&board};
  Admission admission;
  Reconciler reconciler;
  ApiHandlers api;
  std::vector<std::shared_ptr<Stream>> streams;
};

Coordinator::Coordinator(World* world, Referee* referee, std::string state_dir)
    : world_(world),
      referee_(referee),
      state_dir_(std::move(state_dir)),
      tick_(absl::Milliseconds(100 * (1 + world->dice.Below(3)))),
      measures_(world->dice.OneIn(2)),
      quotas_(QuotasOf(world)),
      clock_(world),
      disk_(world) {}

// The run is over: closing the store must not trigger a scheduled death.
Coordinator::~Coordinator() { disk_.DieAfter(-1, nullptr); }

void Coordinator::Start() {
  if (life_ != nullptr) return;
  if (disk_.dead()) disk_.Revive();
  auto opened = SqliteStore::Open(state_dir_);
  absl::Status status = opened.status();
  if (opened.ok()) {
    auto store =
        std::make_unique<CheckedStore>(*std::move(opened), referee_, [this] { return disk_.dead(); });
    StateStore* const stored = store.get();
    life_ = std::make_shared<CoordinatorLife>(this, std::move(store));
    referee_->CoordinatorBegins(stored, /*counted=*/!disk_.full(), quotas_);
    status = RememberNodes();
    if (status.ok()) status = life_->reconciler.Load();
    if (status.ok() && world_->shared()) referee_->CheckNodes(life_->nodes.Snapshot());
    if (!status.ok()) life_ = nullptr;
  }
  if (life_ != nullptr && disk_.dead()) return OnDeath();
  if (!status.ok()) {
    world_->Log("coordinator failed to start status=", absl::StatusCodeToString(status.code()));
    if (!disk_.dead() && (absl::IsDataLoss(status) || absl::IsInternal(status)))
      world_->ReportViolation(absl::StrCat("coordinator: failed to start: ", status.ToString()));
    return world_->After(absl::Seconds(2), [this] { Start(); });
  }
  world_->Log("coordinator started");
  TickSoon(tick_);
}

// Restores known nodes as Server does. Skipped in odd seeds, to cover a start without them.
absl::Status Coordinator::RememberNodes() {
  if (!world_->shared()) return absl::OkStatus();
  const absl::StatusOr<v1::ListNodesResponse> known = life_->store->Nodes();
  if (!known.ok()) return known.status();
  for (const v1::Node& node : known->nodes()) life_->nodes.Restore(ViewOf(node, clock_.Wall(), clock_));
  return absl::OkStatus();
}

void Coordinator::Accept(const std::shared_ptr<Stream>& stream) {
  Stream::Host host;
  host.parts = {&life_->nodes, &life_->reconciler, &life_->rendezvous,
                &life_->logs,  &life_->traces,     /*timelines=*/nullptr};
  host.changed = [this] {
    AfterUse();
    TickSoon(absl::Milliseconds(2));
  };
  host.opened = [this](const std::string& node, int64_t stream_generation) {
    referee_->StreamOpened(node, stream_generation);
  };
  host.heard = [this](const std::string& node, int64_t) { referee_->Heard(node); };
  stream->Accept(std::move(host));
  life_->streams.push_back(stream);
}

void Coordinator::TickSoon(absl::Duration wait) {
  if (life_ == nullptr) return;
  absl::Time when = world_->now() + wait;
  if (suspended()) when = std::max(when, suspended_until_);
  if (when >= next_tick_) return;
  next_tick_ = when;
  world_->After(when - world_->now(), life_, std::function<void(CoordinatorLife*)>([this](CoordinatorLife*) {
                  if (next_tick_ > world_->now()) return;  // An earlier tick was scheduled meanwhile.
                  next_tick_ = absl::InfiniteFuture();
                  if (!suspended()) Tick();
                  TickSoon(tick_);
                }));
}

void Coordinator::Tick() {
  busy_ = true;
  life_->reconciler.RunOnce();
  busy_ = false;
  AfterUse();
}

// Messages from before a death are on the network already.
void Coordinator::AfterUse() {
  if (life_ == nullptr || busy_) return;
  if (disk_.dead()) return OnDeath();
  auto& streams = life_->streams;
  streams.erase(std::remove_if(streams.begin(), streams.end(),
                               [](const auto& each) { return !each->open_at_coordinator(); }),
                streams.end());
  for (const auto& stream : streams) stream->Flush();
  referee_->AfterTick(&life_->board);
}

bool Coordinator::Call(const std::function<void(ApiHandlers* api)>& call) {
  if (life_ == nullptr || suspended()) return false;
  busy_ = true;
  call(&life_->api);
  busy_ = false;
  const bool answered = !disk_.dead();
  AfterUse();
  TickSoon(absl::Milliseconds(2));
  return answered;
}

void Coordinator::Kill() {
  if (life_ == nullptr) return;
  disk_.Die();
  OnDeath();
}

void Coordinator::KillInAWrite(int operations) {
  if (life_ == nullptr) return;
  disk_.DieAfter(operations, [this] {
    if (life_ == nullptr) return;
    for (const auto& stream : life_->streams) stream->Flush();
  });
}

void Coordinator::OnDeath() {
  world_->Log("coordinator died");
  referee_->CoordinatorEnds();
  const std::shared_ptr<CoordinatorLife> life = std::exchange(life_, nullptr);
  for (const auto& stream : life->streams) stream->CoordinatorDied();
  next_tick_ = absl::InfiniteFuture();
  suspended_until_ = world_->now();
  life->streams.clear();
  world_->After(absl::ZeroDuration(), [life] {});  // Deferred: a call may be running.
  world_->After(world_->dice.Between(absl::Milliseconds(300), absl::Seconds(25)), [this] { Start(); });
}

void Coordinator::Stop() {
  if (life_ == nullptr || suspended()) return;
  world_->Log("coordinator shutdown requested");
  const std::shared_ptr<CoordinatorLife> life = std::exchange(life_, nullptr);
  referee_->CoordinatorEnds();
  life->board.Close();
  for (const auto& stream : life->streams)
    stream->CloseByCoordinator(absl::UnavailableError("shutting down"));
  life->reconciler.Stop();
  next_tick_ = absl::InfiniteFuture();
  world_->After(world_->dice.Between(absl::Milliseconds(300), absl::Seconds(25)), [this] { Start(); });
}

void Coordinator::Suspend(absl::Duration time) {
  if (life_ == nullptr) return;
  world_->Log("coordinator suspended duration=", absl::FormatDuration(time));
  suspended_until_ = std::max(suspended_until_, world_->now() + time);
  // The first tick runs before the messages that arrived meanwhile are read.
  world_->After(time, life_, std::function<void(CoordinatorLife*)>([this](CoordinatorLife* life) {
                  if (suspended()) return;
                  Tick();
                  if (life_.get() != life) return;
                  const auto streams = life_->streams;
                  for (const auto& stream : streams) stream->Kick();
                  TickSoon(tick_);
                }));
}

void Coordinator::Heal() {
  SetDiskFull(false);
  if (!suspended()) return;
  suspended_until_ = world_->now();
  Tick();
  if (life_ == nullptr) return;
  const auto streams = life_->streams;
  for (const auto& stream : streams) stream->Kick();
  TickSoon(tick_);
}

void Coordinator::SetDiskFull(bool full) {
  if (full == disk_.full()) return;
  world_->Log(full ? "disk full" : "disk has space");
  disk_.SetFull(full);
}

JobBoard* Coordinator::board() { return life_ == nullptr ? nullptr : &life_->board; }

std::vector<std::string> Coordinator::CordonedNodes() const {
  std::vector<std::string> names;
  if (life_ == nullptr) return names;
  for (const auto& [name, cordon] : life_->reconciler.cordons().All()) names.push_back(name);
  return names;
}

}  // namespace fsdpd::sim
