// From when each instruction ran to what a step report says: communication by operation, how much of it the
// compute lane did not hide, and how busy that lane was. A pure function over intervals.
//
// Exposed time of a collective is the part of its interval in which the compute lane ran nothing. Waiting for
// a peer that is late counts as communication: seen from this rank it is. Collectives of two lanes may be
// exposed at once; the step's own exposed time counts that moment once.
//
// What runs on lanes beside steps (RunsBesideSteps) counts in none of these.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "fsdp/plan/program/program.h"
#include "proto/fsdpd/v1/telemetry.pb.h"

namespace fsdpd {

struct Span {
  LaneId lane = LaneId::kCompute;
  // Since the step before left the compute lane. The first gathers of a step run beside the last updates of
  // the one before, and so start before 0.
  double start_seconds = 0;
  double end_seconds = 0;
  v1::CommOp op = v1::COMM_OP_UNSPECIFIED;  // UNSPECIFIED: not communication.
  int64_t received_bytes = 0;
  // Of a launched step (fsdp/engine/executor.h): its updates went with the step after, and the times in their
  // places are those of the step before, or there are none.
  bool of_step_before = false;
  bool measured = true;
};

struct StepTiming {
  double step_seconds = 0;  // From 0, or the first start after it, to the last end: steps add up to the time.
  double compute_seconds = 0;   // Compute lane busy, communication on it left out.
  double exposed_seconds = 0;   // Any communication under way after 0 and compute idle.
  std::vector<v1::OpTime> ops;  // One for each operation that occurred, in the enum's order.
};

StepTiming SummariseStep(const std::vector<Span>& spans);

}  // namespace fsdpd
