#include "tests/sim/node.h"

#include <unistd.h>

#include <deque>
#include <filesystem>
#include <utility>

#include "agent/agent_flow.h"
#include "agent/gpu/node_preflight.h"
#include "agent/link/attachment.h"
#include "agent/link/backoff.h"
#include "base/check.h"
#include "coordinator/nodes/agent_lease.h"
#include "tests/sim/coordinator.h"

namespace fsdpd::sim {
namespace {

constexpr absl::Duration kGrace = absl::Seconds(5);
constexpr absl::Duration kFlush = absl::Seconds(2);
// As in the agent's main, in addition to the grace period.
constexpr absl::Duration kMaxDrain = absl::Seconds(30);
static_assert(Attachment::kLease <= AgentLease::kLostAfter,
              "an agent must not obey after the coordinator considers it lost");
// Longer than the real 20 ms, as on a busy machine.
constexpr absl::Duration kMinTurn = absl::Milliseconds(100);

// Simulated ranks write no logs.
class NoLogs : public RankLogs {
 public:
  std::string PathOf(const RankId&) const override { return "/nonexistent/rank.log"; }
  std::string DirectoryOf(const AttemptId&) const override { return "/nonexistent"; }
  absl::StatusOr<UniqueFd> OpenForRank(const RankId&) override { return UniqueFd(); }
  void RankEnded(const RankId&) override {}
  void AddNotice(const RankId&, const std::string&) override {}
  std::vector<std::string> Tail(const RankId&, int) const override { return {}; }
};

}  // namespace

// One process of an agent.
struct AgentLife : public Uplink, public std::enable_shared_from_this<AgentLife> {
  AgentLife(Node* owner, int number);
  ~AgentLife() override { node->ranks_->KillAll(node->name_); }

  // Uplink.
  void SendLifecycle(v1::AgentMessage message) override {
    AddAndWrite([&] { out().AddLifecycle(std::move(message)); });
  }
  void SendSaved(v1::AgentMessage message) override {
    AddAndWrite([&] { out().AddSaved(std::move(message)); });
  }
  void SendStep(v1::AgentMessage message) override {
    AddAndWrite([&] { out().AddStep(std::move(message)); });
  }
  void SendRendezvous(v1::AgentMessage message) override {
    AddAndWrite([&] { out().AddRendezvous(std::move(message)); });
  }
  void ForgetRendezvous(const AttemptId& attempt) override { out().ForgetRendezvous(attempt); }
  std::vector<v1::AgentMessage> Undelivered() override { return out().Undelivered(); }
  bool attached() override { return stream != nullptr && attachment.welcomed(); }

  UplinkHandler& handler() { return flow; }
  Outbox& out() { return attachment.outbox(); }
  void AddAndWrite(const std::function<void()>& add) {
    add();
    WriteSoon();
  }
  template <typename What>
  void Later(absl::Duration wait, What what) {
    node->world_->After(wait, shared_from_this(), std::function<void(AgentLife*)>(std::move(what)));
  }

  void Connect();
  void ConnectLater();
  bool EndedByLease();
  void Take(const v1::CoordinatorMessage& message);
  void TakeOrders();
  void Ended(const absl::Status& why);
  void WriteSoon();
  void Write();
  void TurnSoon(absl::Duration wait);
  void Turn();
  void Drain();
  void AwaitDrain();
  void AwaitFinalRead(const std::shared_ptr<Stream>& left, absl::Time until);
  void Leave();

  Node* const node;
  NoLogs logs;
  MetricsExporter metrics;
  AgentFlow flow;
  Attachment attachment;
  Backoff backoff;
  std::unique_ptr<RankSupervisor> supervisor;
  std::unique_ptr<Preflight> preflight;
  std::shared_ptr<Stream> stream;
  std::deque<v1::CoordinatorMessage> orders;  // Orders that wait for outbox capacity, and later messages.
  absl::Time next_turn = absl::InfiniteFuture();
  absl::Time next_write = absl::InfiniteFuture();
  std::optional<absl::Time> draining;
  bool leaves = false;
};

namespace {

AgentFlow::Options FlowOptions(AgentLife* life, const std::string& node, const std::string& work_dir,
                               int slots, int number, Clock* clock) {
  AgentFlow::Options options;
  options.node = node;
  options.work_dir = work_dir;
  options.about = [node, slots, number] {
    v1::Register info;
    info.set_node(node);
    info.set_device(v1::DEVICE_CPU);
    info.set_slots(slots);
    info.set_memory_bytes_per_slot(int64_t{16} << 30);
    info.set_instance(absl::StrCat(node, "/", number));
    info.set_preflights(true);
    return info;
  };
  options.refused = [life](const absl::Status&) { life->leaves = true; };
  options.clock = clock;
  return options;
}

}  // namespace

AgentLife::AgentLife(Node* owner, int number)
    : node(owner),
      metrics(owner->name_, owner->slots_, &owner->clock_),
      flow(FlowOptions(this, owner->name_, owner->work_dir_, owner->slots_, number, &owner->clock_)),
      attachment(&owner->clock_),
      backoff(absl::Milliseconds(100), absl::Seconds(3),
              static_cast<uint32_t>(owner->world_->dice.Below(1 << 30))) {}

void AgentLife::Connect() {
  if (stream != nullptr || leaves) return;
  if (node->disconnected() || !node->coordinator_->listens()) return ConnectLater();
  StreamEnds ends;
  ends.up_blocked = [n = node] { return n->disconnected() || n->coordinator_->suspended(); };
  ends.down_blocked = [n = node] { return n->disconnected() || n->suspended(); };
  const std::weak_ptr<AgentLife> weak = weak_from_this();
  ends.take = [weak](const v1::CoordinatorMessage& message) {
    if (const auto life = weak.lock()) life->Take(message);
  };
  ends.ended = [weak](const absl::Status& why) {
    if (const auto life = weak.lock()) life->Ended(why);
  };
  stream = std::make_shared<Stream>(node->world_, node->name_, std::move(ends));
  node->coordinator_->Accept(stream);
  stream->SendUp(attachment.Begin(handler().Registration()));
  WriteSoon();
}

void AgentLife::ConnectLater() {
  Later(backoff.Next(), [](AgentLife* life) { life->Connect(); });
}

// As in the real link: a stream whose lease has lapsed is neither obeyed nor written.
bool AgentLife::EndedByLease() {
  if (stream == nullptr || !attachment.Lapsed()) return false;
  stream->CloseByAgent();
  Ended(absl::CancelledError("lease lapsed"));
  return true;
}

void AgentLife::Take(const v1::CoordinatorMessage& message) {
  if (EndedByLease()) return;
  if (const absl::Status checked = attachment.Check(message); !checked.ok()) {
    node->world_->ReportViolation(
        absl::StrCat("agent: received a message of another stream: ", checked.message()));
    return;
  }
  if (!attachment.welcomed()) {
    node->world_->Log("welcomed node=", node->name_, " generation=", message.stream_generation());
    handler().Connected(true);
    attachment.Welcome(message);
    backoff.Reset();
    WriteSoon();
  } else {
    attachment.Take(message);
    orders.push_back(message);
    TakeOrders();
  }
}

void AgentLife::TakeOrders() {
  while (!orders.empty() && (!Attachment::IsOrder(orders.front()) || attachment.MayTakeOrders())) {
    const v1::CoordinatorMessage order = std::move(orders.front());
    orders.pop_front();
    handler().Received(order);
    TurnSoon(absl::ZeroDuration());
  }
}

void AgentLife::Ended(const absl::Status& why) {
  const bool refused = attachment.RefusedForGood(why);
  const bool was_attached = attached();
  stream = nullptr;
  orders.clear();
  attachment.End(/*in_order=*/false);
  if (was_attached) handler().Connected(false);
  node->world_->Log("stream ended at the agent node=", node->name_,
                    " status=", absl::StatusCodeToString(why.code()));
  if (refused) handler().Refused(why);
  if (refused)
    Later(absl::Milliseconds(10), [](AgentLife* life) {
      Node* const n = life->node;
      n->Kill();
    });
  TurnSoon(absl::ZeroDuration());
  ConnectLater();
}

void AgentLife::WriteSoon() {
  const absl::Time due = attachment.welcomed() ? node->world_->now() : absl::InfiniteFuture();
  const absl::Time until = std::min(due, node->world_->now() + (attachment.due() - node->clock_.Now()));
  if (stream == nullptr || until >= next_write) return;
  next_write = until;
  Later(until - node->world_->now(), [](AgentLife* life) { life->Write(); });
}

void AgentLife::Write() {
  next_write = absl::InfiniteFuture();
  if (node->suspended() || EndedByLease()) return;
  if (stream != nullptr && attachment.Overdue()) {
    stream->CloseByAgent();
    return Ended(absl::CancelledError("no Welcome"));
  }
  v1::AgentMessage message;
  int64_t ticket = -1;
  while (stream != nullptr && attachment.Next(&message, &ticket)) {
    stream->SendUp(message);
    attachment.Written(ticket);
  }
  TakeOrders();
  if (stream == nullptr) return;
  const absl::Duration wait = attachment.due() - node->clock_.Now();
  if (wait == absl::InfiniteDuration()) return;
  next_write = node->world_->now() + wait;
  Later(wait, [](AgentLife* life) { life->Write(); });
}

void AgentLife::TurnSoon(absl::Duration wait) {
  const absl::Time when = node->world_->now() + wait;
  if (when >= next_turn) return;
  next_turn = when;
  Later(wait, [](AgentLife* life) { life->Turn(); });
}

void AgentLife::Turn() {
  if (next_turn > node->world_->now()) return;  // An earlier turn was scheduled meanwhile.
  next_turn = absl::InfiniteFuture();
  if (node->suspended()) return;
  const absl::Duration wait = supervisor->Turn();
  node->ranks_->ReadAll(node->name_);
  TurnSoon(std::max(wait, kMinTurn));
}

// As in fsdpd-agent's main.
void AgentLife::Drain() {
  draining = node->world_->now();
  supervisor->StopAll(kGrace);
  TurnSoon(absl::ZeroDuration());
  AwaitDrain();
}

void AgentLife::AwaitDrain() {
  const absl::Duration taken = node->world_->now() - *draining;
  const bool over = supervisor->Idle() && (flow.AllDelivered() || taken > kGrace);
  if (!over && taken < kGrace + kMaxDrain)
    return Later(absl::Milliseconds(100), [](AgentLife* life) { life->AwaitDrain(); });
  leaves = true;
  if (stream == nullptr) return Leave();
  Write();
  if (stream == nullptr) return Leave();
  stream->CloseByAgent();
  AwaitFinalRead(std::exchange(stream, nullptr), node->world_->now() + kFlush);
}

// If the coordinator has read everything, nothing is undelivered; otherwise it is unknown.
void AgentLife::AwaitFinalRead(const std::shared_ptr<Stream>& left, absl::Time until) {
  if (!left->read_to_the_end() && node->world_->now() < until)
    return Later(absl::Milliseconds(50),
                 [left, until](AgentLife* life) { life->AwaitFinalRead(left, until); });
  attachment.End(/*in_order=*/left->read_to_the_end());
  Leave();
}

void AgentLife::Leave() {
  const std::shared_ptr<AgentLife> self = shared_from_this();
  flow.StoreRest();
  node->world_->Log("agent left node=", node->name_);
  node->life_ = nullptr;
  node->StartLater(absl::Seconds(1), absl::Seconds(20));
}

Node::Node(World* world, Ranks* ranks, Coordinator* coordinator, std::string name, int slots,
           const std::string& directory)
    : world_(world),
      ranks_(ranks),
      coordinator_(coordinator),
      name_(std::move(name)),
      slots_(slots),
      work_dir_(directory + "/" + name_),
      clock_(world) {
  std::filesystem::create_directories(work_dir_);
}

Node::~Node() = default;

void Node::Start() {
  if (life_ != nullptr) return;
  world_->Log("agent started node=", name_);
  const auto life = std::make_shared<AgentLife>(this, ++lives_);
  RankSupervisor::Options options;
  options.rank_binary = "/proc/self/exe";
  options.slots = slots_;
  options.grace = kGrace;
  options.own_thread = false;
  const std::weak_ptr<AgentLife> weak = life;
  options.spawn = [this, weak](const RankCommand&) -> absl::StatusOr<std::unique_ptr<RankBody>> {
    if (world_->dice.OneIn(60)) return absl::UnavailableError("cannot start a rank: no memory");
    return ranks_->Spawn(name_, [weak] {
      if (const auto alive = weak.lock()) alive->TurnSoon(absl::Milliseconds(1));
    });
  };
  life->supervisor = std::make_unique<RankSupervisor>(std::move(options), &life->logs, &life->flow, &clock_);
  life->preflight = std::make_unique<Preflight>(Preflight::Options{v1::DEVICE_CPU, slots_},
                                                life->supervisor.get(), /*gpus=*/nullptr, &clock_,
                                                [alive = life.get()](v1::PreflightResult result) {
                                                  v1::AgentMessage message;
                                                  *message.mutable_preflight() = std::move(result);
                                                  alive->SendLifecycle(std::move(message));
                                                });
  AgentFlow::Parts parts;
  parts.preflight = life->preflight.get();
  parts.link = life.get();
  parts.supervisor = life->supervisor.get();
  parts.metrics = &life->metrics;
  life->flow.Connect(parts);
  life->flow.SendUndelivered();
  life_ = life;
  life->Connect();
  life->TurnSoon(absl::ZeroDuration());
}

void Node::StartLater(absl::Duration least, absl::Duration most) {
  world_->After(world_->dice.Between(least, most), [this] { Start(); });
}

void Node::Kill() {
  if (life_ == nullptr) return;
  world_->Log("agent killed node=", name_);
  ranks_->KillAll(name_);
  const std::shared_ptr<AgentLife> life = std::exchange(life_, nullptr);
  if (life->stream != nullptr) life->stream->Break();
  StartLater(absl::Milliseconds(500), absl::Seconds(25));
}

void Node::Drain() {
  if (life_ == nullptr || life_->draining.has_value() || suspended()) return;
  world_->Log("agent drain requested node=", name_);
  life_->Drain();
}

void Node::Suspend(absl::Duration time) {
  if (life_ == nullptr) return;
  world_->Log("agent suspended node=", name_, " duration=", absl::FormatDuration(time));
  suspended_until_ = std::max(suspended_until_, world_->now() + time);
  world_->After(time, [this] { Kick(); });
}

void Node::Disconnect(absl::Duration time) {
  world_->Log("network cut node=", name_, " duration=", absl::FormatDuration(time));
  disconnected_until_ = std::max(disconnected_until_, world_->now() + time);
  world_->After(time, [this] { Kick(); });
  // Keepalives fail at either end, or the stream survives a short cut.
  if (life_ == nullptr || life_->stream == nullptr) return;
  const std::shared_ptr<Stream> stream = life_->stream;
  world_->After(world_->dice.Between(absl::Seconds(5), absl::Seconds(25)), life_,
                std::function<void(AgentLife*)>([stream](AgentLife* life) {
                  if (life->stream != stream || !life->node->disconnected()) return;
                  stream->CloseByAgent();
                  life->Ended(absl::UnavailableError("keepalive"));
                }));
  world_->After(world_->dice.Between(absl::Seconds(5), absl::Seconds(25)), stream,
                std::function<void(Stream*)>([this](Stream* each) {
                  if (disconnected()) each->CloseByCoordinator(absl::UnavailableError("keepalive"));
                }));
}

void Node::BreakStream() {
  if (life_ == nullptr || life_->stream == nullptr) return;
  world_->Log("stream broken node=", name_);
  life_->stream->Break();
}

void Node::Heal() {
  disconnected_until_ = suspended_until_ = world_->now();
  Kick();
  Start();
}

void Node::Kick() {
  if (life_ == nullptr) return;
  if (life_->stream != nullptr) life_->stream->Kick();
  if (suspended()) return;
  life_->TurnSoon(absl::ZeroDuration());
  life_->Later(absl::ZeroDuration(), [](AgentLife* life) { life->Write(); });
}

void Node::TearUndelivered() {
  const std::string path = work_dir_ + "/undelivered";
  std::error_code error;
  const auto size = std::filesystem::file_size(path, error);
  if (error || size < 2) return;
  world_->Log("undelivered file truncated node=", name_);
  FSDPD_CHECK(truncate(path.c_str(), world_->dice.Below(static_cast<int>(size))) == 0);
}

bool Node::idle() const { return life_ == nullptr || life_->supervisor->Idle(); }

Stream* Node::stream() { return life_ == nullptr ? nullptr : life_->stream.get(); }

}  // namespace fsdpd::sim
