// Step simulation: predicts time, exposed communication and memory over time of a program, from the
// instruction times in cost.h. Compute and communication slow each other down by the profile's factors.
//
// Steps overlap (the next step's first gathers start when their updates are done). Therefore three steps are
// simulated and the second is reported: from the end of the first step's last compute to the end of its own.
// Pure and deterministic.
#pragma once

#include "fsdp/plan/memory/memory.h"
#include "fsdp/plan/predict/cost.h"
#include "fsdp/plan/predict/lane_times.h"
#include "fsdp/plan/program/traffic.h"

namespace fsdpd {

struct SimulatedSpan {
  double start = 0;  // Seconds since the step's start; negative if it started during the previous step.
  double seconds = 0;
};

// All instructions of one operation within a step.
struct SimulatedOp {
  Op op = Op::kForward;
  double seconds = 0;
  double exposed_seconds = 0;  // Communication with the compute lane idle; its share of such time.
  int64_t bytes = 0;           // Traffic::received_bytes.
  int64_t count = 0;
  v1::CommOp counted_as = v1::COMM_OP_UNSPECIFIED;  // Traffic's.
};

// All communication over groups of one kind within a step, including exchanges inside units. Exchanges are
// part of compute time but fully exposed. Time in which several groups or operations are exposed is split
// evenly among them, so that they add up to the step's exposed time.
struct SimulatedGroup {
  Group group = Group::kSelf;
  double seconds = 0;
  double exposed_seconds = 0;
  int64_t bytes = 0;  // Received by one rank.
  int64_t count = 0;
};

// Bytes in use until the next sample, in the order of SimulatedComponents().
struct MemorySample {
  double start = 0;
  std::vector<int64_t> bytes;
};

struct Simulation {
  std::vector<SimulatedSpan> spans;  // By instruction index.
  double step_seconds = 0;
  double compute_seconds = 0;             // Busy time of the compute lane.
  double exposed_seconds = 0;             // Compute idle while communication is in flight.
  std::vector<SimulatedOp> ops;           // Operations that occur, in the order of Op.
  std::vector<SimulatedGroup> groups;     // Groups with communication, in the order of Group.
  std::vector<SimulatedGroup> exchanges;  // Exchanges inside units by group; included in `groups`.
  double exchanged_seconds = 0;           // Their part of compute_seconds.
  double tokens_per_second = 0;           // Over all ranks.
  double mfu = 0;                         // StepFlops divided by the ranks' peak FLOPs in step_seconds.
  // For a step that saves (the times above are for one that does not): total time of its Snapshots, and the
  // slowdown of the next step, whose Updates wait for them.
  double snapshot_seconds = 0;
  double snapshot_stall_seconds = 0;
  // Offload: time to fetch (writing back takes as long and overlaps), and the resulting increase of
  // step_seconds.
  double offload_seconds = 0;
  double offload_stall_seconds = 0;
  std::vector<MemorySample> memory;
};

// main_params, optimizer, gradients, replica, gather_buffers, reduce_buffers, activations, workspace. Buffers
// count while they are live; the arena itself is held throughout and may be larger.
const std::vector<std::string>& SimulatedComponents();

// REQUIRES: `program` is a training program that verifies. `times`: three steps of RunStages() for one of
// several stages; null with one stage.
Simulation Simulate(const Spec& spec, const ModelFacts& model, const Layout& layout, const Program& program,
                    const DeviceProfile& profile, Placement placement, const LaneTimes* times = nullptr);

}  // namespace fsdpd
