// Step timing: computes a step report's communication time by operation, its exposed part, and the
// utilization of the compute lane from the intervals of instructions. A pure function.
//
// The exposed time of a collective is the part of its interval in which the compute lane was idle. Waiting
// for a late peer counts as communication. Collectives of two lanes may be exposed simultaneously; the step's
// exposed time counts such a moment once.
//
// Lanes that run concurrently with steps (IsBackgroundLane) are not counted.
#pragma once

#include <cstdint>
#include <vector>

#include "fsdp/plan/program/program.h"
#include "proto/fsdpd/v1/telemetry.pb.h"

namespace fsdpd {

struct Span {
  LaneId lane = LaneId::kCompute;
  // Relative to when the previous step left the compute lane. The first all-gathers of a step overlap with
  // the last updates of the previous one, so they start below 0.
  double start_seconds = 0;
  double end_seconds = 0;
  v1::CommOp op = v1::COMM_OP_UNSPECIFIED;  // UNSPECIFIED: not communication.
  int64_t received_bytes = 0;
  // For a graph-launched step (fsdp/engine/executor.h): its updates ran with the next step, and these times
  // are those of the previous step's updates, or absent.
  bool of_step_before = false;
  bool measured = true;
};

struct StepTiming {
  // From 0 (or a later first start) to the last end: steps add up to the total time.
  double step_seconds = 0;
  double compute_seconds = 0;   // Compute lane busy, excluding communication on it.
  double exposed_seconds = 0;   // Any communication after 0 while compute is idle.
  std::vector<v1::OpTime> ops;  // One per operation that occurred, in the order of the enum.
};

StepTiming SummariseStep(const std::vector<Span>& spans);

}  // namespace fsdpd
