#include "fsdp/plan/predict/simulate.h"

#include <algorithm>
#include <map>

#include "base/check.h"
#include "fsdp/plan/model/activation_policy.h"
#include "fsdp/plan/predict/lane_times.h"

namespace fsdpd {
namespace {

constexpr int kSteps = 3;
constexpr int kReported = 1;

enum Component { kMain, kOptimizer, kGradients, kReplica, kGather, kReduce, kActivations, kWorkspace };

double EndOfCompute(const Program& program, const LaneTimes& times, int step) {
  double end = 0;
  for (size_t i = 0; i < program.instructions.size(); ++i) {
    if (program.instructions[i].lane == LaneId::kCompute) end = std::max(end, times.steps[step][i].end);
  }
  return end;
}

// Times of the reported step are relative to the end of the previous step's compute.
class Report {
 public:
  Report(const Program& program, std::vector<Traffic> traffic, std::array<ExchangeCost, kGroups> exchanges,
         LaneTimes times)
      : program_(program), traffic_(std::move(traffic)), exchanges_(exchanges), times_(std::move(times)) {
    begin_ = EndOfCompute(program_, times_, kReported - 1);
    end_ = EndOfCompute(program_, times_, kReported);
  }

  void Fill(Simulation* simulation) const {
    simulation->step_seconds = end_ - begin_;
    for (const Interval& time : times_.steps[kReported]) {
      simulation->spans.push_back({time.start - begin_, time.end - time.start});
    }
    std::map<Op, SimulatedOp> ops;
    std::map<Group, SimulatedGroup> groups;
    for (const LaneTimes::Piece& piece : times_.pieces) Add(piece, simulation, &ops, &groups);
    for (size_t i = 0; i < traffic_.size(); ++i) {
      if (traffic_[i].communicates()) {
        SimulatedGroup& group = groups[program_.instructions[i].group];
        group.bytes += traffic_[i].received_bytes;
        ++group.count;
      }
      SimulatedOp& op = ops[program_.instructions[i].op];
      op.counted_as = traffic_[i].counted_as;
      op.bytes += traffic_[i].received_bytes;
      ++op.count;
    }
    for (auto& [op, sum] : ops) {
      sum.op = op;
      simulation->ops.push_back(sum);
    }
    AddExchanges(simulation, &groups);
    for (auto& [group, sum] : groups) {
      sum.group = group;
      simulation->groups.push_back(sum);
    }
  }

  // A change of one component's bytes at a time, in any of the steps.
  void AddMemory(int component, int64_t bytes, int first, int last) {
    for (const std::vector<Interval>& step : times_.steps) {
      changes_.push_back({step[first].start, component, bytes});
      changes_.push_back({step[last].end, component, -bytes});
    }
  }

  // Bytes of a buffer are counted once even if the next step's use overlaps this one's.
  void AddBuffer(int component, const Buffer& buffer) {
    std::vector<Interval> uses;
    for (const std::vector<Interval>& step : times_.steps) {
      for (const Buffer::Interval& live : buffer.live) {
        uses.push_back({step[live.born].start, step[live.dies].end});
      }
    }
    std::sort(uses.begin(), uses.end(),
              [](const Interval& a, const Interval& b) { return a.start < b.start; });
    for (size_t n = 0; n < uses.size(); ++n) {
      const double end = n + 1 < uses.size() ? std::min(uses[n].end, uses[n + 1].start) : uses[n].end;
      changes_.push_back({uses[n].start, component, buffer.bytes});
      changes_.push_back({end, component, -buffer.bytes});
    }
  }

  std::vector<MemorySample> MemoryOver(std::vector<int64_t> bytes) {
    std::stable_sort(changes_.begin(), changes_.end(),
                     [](const Change& a, const Change& b) { return a.time < b.time; });
    std::vector<MemorySample> samples{{0, {}}};
    for (const Change& change : changes_) {
      if (change.time >= end_) break;
      const double at = std::max(0.0, change.time - begin_);
      if (at > samples.back().start) {
        samples.back().bytes = bytes;
        samples.push_back({at, {}});
      }
      bytes[change.component] += change.bytes;
    }
    samples.back().bytes = bytes;
    return samples;
  }

 private:
  struct Change {
    double time = 0;
    int component = 0;
    int64_t bytes = 0;
  };

  void AddExchanges(Simulation* simulation, std::map<Group, SimulatedGroup>* groups) const {
    for (int g = 0; g < kGroups; ++g) {
      const ExchangeCost& cost = exchanges_[g];
      if (cost.count == 0) continue;
      const SimulatedGroup exchange = {static_cast<Group>(g), cost.seconds, cost.seconds, cost.received_bytes,
                                       cost.count};
      SimulatedGroup& group = (*groups)[exchange.group];
      group.seconds += exchange.seconds;
      group.exposed_seconds += exchange.exposed_seconds;
      group.bytes += exchange.bytes;
      group.count += exchange.count;
      simulation->exchanges.push_back(exchange);
      simulation->exchanged_seconds += exchange.seconds;
    }
  }

  void Add(const LaneTimes::Piece& piece, Simulation* simulation, std::map<Op, SimulatedOp>* ops,
           std::map<Group, SimulatedGroup>* groups) const {
    const double seconds = std::min(piece.time.end, end_) - std::max(piece.time.start, begin_);
    if (seconds <= 0) return;
    const bool computes = piece.running[static_cast<size_t>(LaneId::kCompute)] >= 0;
    if (computes) simulation->compute_seconds += seconds;
    const auto communicating = std::count_if(piece.running.begin(), piece.running.end(), [&](int running) {
      return running >= 0 && traffic_[running].communicates();
    });
    for (const int running : piece.running) {
      if (running < 0) continue;
      const Instruction& i = program_.instructions[running];
      SimulatedOp& op = (*ops)[i.op];
      op.seconds += seconds;
      if (!traffic_[running].communicates()) continue;
      SimulatedGroup& group = (*groups)[i.group];
      group.seconds += seconds;
      if (computes) continue;
      const double share = seconds / static_cast<double>(communicating);
      op.exposed_seconds += share;
      group.exposed_seconds += share;
    }
    if (communicating > 0 && !computes) simulation->exposed_seconds += seconds;
  }

  const Program& program_;
  const std::vector<Traffic> traffic_;  // By instruction.
  const std::array<ExchangeCost, kGroups> exchanges_;
  const LaneTimes times_;
  double begin_ = 0;
  double end_ = 0;
  std::vector<Change> changes_;
};

int ComponentOf(BufferKind kind) {
  constexpr int kComponents[kBufferKinds] = {kGather, kReduce, kReduce, kReplica, kOptimizer};
  return kComponents[static_cast<size_t>(kind)];
}

void AddBuffers(const Spec& spec, const Program& program, Report* report) {
  for (const Buffer& buffer : program.buffers) {
    const int component = ComponentOf(buffer.kind);
    // Unsharded gradients are counted in `gradients`.
    if (component == kReduce && !spec.shards_grads()) continue;
    if (component == kOptimizer) continue;  // Its buffers are counted throughout.
    report->AddBuffer(component, buffer);
  }
}

// Saved activations live from a unit's forward to its backward of the same micro-batch, and those for
// deferred weight gradients until BackwardWeights.
void AddActivations(const Spec& spec, const ModelFacts& model, const Program& program, Report* report) {
  std::map<std::pair<int, int>, int> forward, back;
  for (size_t n = 0; n < program.instructions.size(); ++n) {
    const Instruction& i = program.instructions[n];
    const int at = static_cast<int>(n);
    const bool both = i.op == Op::kForwardBackward;
    if (both || i.op == Op::kForward) forward[{i.unit, i.micro_batch}] = at;
    // On the device until offloaded, and again from the start of the fetch.
    if (i.op == Op::kDropActivations)
      report->AddMemory(kActivations, SavedBytesOf(spec, model, i.unit), forward.at({i.unit, i.micro_batch}),
                        at);
    if (i.op == Op::kFetchActivations) forward[{i.unit, i.micro_batch}] = at;
    if (i.op == Op::kBackwardWeights)
      report->AddMemory(kActivations, model.units[i.unit].deferred_bytes, back.at({i.unit, i.micro_batch}),
                        at);
    if (i.defers_grads) back[{i.unit, i.micro_batch}] = at;
    if (!both && i.op != Op::kBackward) continue;
    const UnitFacts& unit = model.units[i.unit];
    const int64_t kept = SavedBytesOf(spec, model, i.unit);
    report->AddMemory(kActivations, kept, forward.at({i.unit, i.micro_batch}), at);
    report->AddMemory(kActivations, unit.saved_bytes.none - kept, at, at);
    report->AddMemory(kWorkspace, unit.workspace_bytes, at, at);
  }
}

double ReportedStep(const Program& program, const std::vector<double>& seconds, Slowdown slowdown) {
  const LaneTimes times = RunLanes(program, seconds, kReported + 1, slowdown);
  return EndOfCompute(program, times, kReported) - EndOfCompute(program, times, kReported - 1);
}

// Compares with the same steps with instantaneous offload copies. Simulates the stage in isolation, because
// waiting for other stages is not caused by offload.
void AddOffload(const Program& program, std::vector<double> seconds, Slowdown slowdown,
                Simulation* simulation) {
  const double with = ReportedStep(program, seconds, slowdown);
  for (size_t i = 0; i < seconds.size(); ++i) {
    const Staging staging = StagingOf(program.instructions[i].op);
    if (staging == Staging::kFetches) simulation->offload_seconds += seconds[i];
    if (staging != Staging::kNone) seconds[i] = 0;
  }
  if (simulation->offload_seconds == 0) return;
  simulation->offload_stall_seconds = std::max(0.0, with - ReportedStep(program, seconds, slowdown));
}

// The same steps with a snapshot in each: the reported step follows the first one's copies. `seconds`: of a
// step that does not save.
void AddSnapshots(const Spec& spec, const Layout& layout, const Program& program,
                  const DeviceProfile& profile, std::vector<double> seconds, Slowdown slowdown,
                  Simulation* simulation) {
  if (!spec.checkpoint.saves()) return;
  const std::vector<double> snapshots = SnapshotSeconds(spec, layout, program, profile);
  const double without = ReportedStep(program, seconds, slowdown);
  for (size_t i = 0; i < seconds.size(); ++i) {
    seconds[i] += snapshots[i];
    simulation->snapshot_seconds += snapshots[i];
  }
  simulation->snapshot_stall_seconds = std::max(0.0, ReportedStep(program, seconds, slowdown) - without);
}

}  // namespace

const std::vector<std::string>& SimulatedComponents() {
  static const auto* names =
      new std::vector<std::string>{"main_params",    "optimizer",      "gradients",   "replica",
                                   "gather_buffers", "reduce_buffers", "activations", "workspace"};
  return *names;
}

Simulation Simulate(const Spec& spec, const ModelFacts& model, const Layout& layout, const Program& program,
                    const DeviceProfile& profile, Placement placement, const LaneTimes* times) {
  FSDPD_CHECK(program.kind == ProgramKind::kTraining);
  const std::vector<double> seconds = InstructionSeconds(spec, model, layout, program, profile, placement);
  std::vector<Traffic> traffic;
  for (const Instruction& i : program.instructions) traffic.push_back(TrafficOf(spec.mesh, layout, i));
  const Slowdown slowdown{profile.compute_slowdown, profile.communication_slowdown};
  Report report(program, std::move(traffic), ExchangeCosts(spec, model, layout, program, profile, placement),
                times != nullptr ? *times : RunLanes(program, seconds, kSteps, slowdown));
  Simulation simulation;
  report.Fill(&simulation);
  AddOffload(program, seconds, slowdown, &simulation);
  AddSnapshots(spec, layout, program, profile, seconds, slowdown, &simulation);
  simulation.tokens_per_second = static_cast<double>(spec.tokens_per_step()) / simulation.step_seconds;
  simulation.mfu =
      StepFlops(spec, model) / (simulation.step_seconds * static_cast<double>(spec.mesh.world()) *
                                profile.peak_flops(spec.precision.compute));
  const StepMemory planned = PlanMemory(spec, model, layout, program);
  std::vector<int64_t> bytes(SimulatedComponents().size());
  for (const Component constant : {kMain, kOptimizer, kGradients}) {
    bytes[constant] = planned.Of(SimulatedComponents()[constant]);
  }
  AddBuffers(spec, program, &report);
  AddActivations(spec, model, program, &report);
  simulation.memory = report.MemoryOver(std::move(bytes));
  return simulation;
}

}  // namespace fsdpd
