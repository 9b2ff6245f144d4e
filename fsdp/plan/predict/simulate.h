// What a step will cost, before it runs: the program's instructions on their lanes, with their dependencies
// and each as long as cost.h says, in simulated time. Compute is slower while anything is communicated and
// the other way round, by the profile's factors.
//
// Steps overlap (the next step's first gathers start when their updates are done), so three are run in a row
// and the second is reported: from the end of the first one's last compute to the end of its own. Pure and
// deterministic.
#pragma once

#include "fsdp/plan/memory/memory.h"
#include "fsdp/plan/predict/cost.h"
#include "fsdp/plan/predict/lane_times.h"
#include "fsdp/plan/program/traffic.h"

namespace fsdpd {

struct SimulatedSpan {
  double start = 0;  // Seconds from the step's beginning; below 0 for what started beside the step before.
  double seconds = 0;
};

// All instructions of one kind within a step.
struct SimulatedOp {
  Op op = Op::kForward;
  double seconds = 0;
  double exposed_seconds = 0;  // Of what travels: with the compute lane idle, its share of such moments.
  int64_t bytes = 0;           // Traffic::received_bytes.
  int64_t count = 0;
  v1::CommOp counted_as = v1::COMM_OP_UNSPECIFIED;  // Traffic's.
};

// All that travels over groups of one kind within a step, with what units exchange. That is within compute's
// time, and nothing is computed meanwhile. A moment in which several groups, or operations, are exposed is
// divided evenly among them: they add up to the step's exposed time.
struct SimulatedGroup {
  Group group = Group::kSelf;
  double seconds = 0;
  double exposed_seconds = 0;
  int64_t bytes = 0;  // Received by one rank.
  int64_t count = 0;
};

// Bytes in use from this moment to the next sample, in SimulatedComponents()'s order.
struct MemorySample {
  double start = 0;
  std::vector<int64_t> bytes;
};

struct Simulation {
  std::vector<SimulatedSpan> spans;  // By instruction index.
  double step_seconds = 0;
  double compute_seconds = 0;             // The compute lane's busy time.
  double exposed_seconds = 0;             // Compute idle and any communication under way.
  std::vector<SimulatedOp> ops;           // Kinds that occur, in Op's order.
  std::vector<SimulatedGroup> groups;     // Over which anything travels, in Group's order.
  std::vector<SimulatedGroup> exchanges;  // Units' exchanges by group, which `groups` have too.
  double exchanged_seconds = 0;           // Of compute_seconds: all of these.
  double tokens_per_second = 0;           // Over all ranks.
  double mfu = 0;                         // StepFlops over what the ranks' peak would do in the step's time.
  // The step above saves nothing. Where one does, its Snapshots take so long together, and the step after it,
  // whose Updates wait for them, is so much longer.
  double snapshot_seconds = 0;
  double snapshot_stall_seconds = 0;
  // What lies in host memory takes so long to come, and as long to go, and the step above is so much longer
  // for it.
  double offload_seconds = 0;
  double offload_stall_seconds = 0;
  std::vector<MemorySample> memory;
};

// main_params, optimizer, gradients, replica, gather_buffers, reduce_buffers, activations, workspace. Buffers
// count while they are live; their arena is held throughout and may be larger.
const std::vector<std::string>& SimulatedComponents();

// REQUIRES: `program` is a training program that verifies. `times`: of a stage among others, three steps of
// RunStages(); null where there is one.
Simulation Simulate(const Spec& spec, const ModelFacts& model, const Layout& layout, const Program& program,
                    const DeviceProfile& profile, Placement placement, const LaneTimes* times = nullptr);

}  // namespace fsdpd
