#include "fsdp/telemetry/step_timing.h"

#include <algorithm>
#include <limits>
#include <map>
#include <utility>

namespace fsdpd {
namespace {

using Interval = std::pair<double, double>;

// Sorted and disjoint.
std::vector<Interval> Union(std::vector<Interval> intervals) {
  std::sort(intervals.begin(), intervals.end());
  std::vector<Interval> merged;
  for (const Interval& interval : intervals) {
    if (!merged.empty() && interval.first <= merged.back().second) {
      merged.back().second = std::max(merged.back().second, interval.second);
    } else {
      merged.push_back(interval);
    }
  }
  return merged;
}

double Overlap(const Interval& interval, const std::vector<Interval>& busy) {
  auto it = std::partition_point(busy.begin(), busy.end(),
                                 [&](const Interval& b) { return b.second <= interval.first; });
  double seconds = 0;
  for (; it != busy.end() && it->first < interval.second; ++it) {
    seconds += std::min(it->second, interval.second) - std::max(it->first, interval.first);
  }
  return seconds;
}

// The part of a span that is within this step.
Interval Within(const Span& span) {
  return {std::max(span.start_seconds, 0.0), std::max(span.end_seconds, 0.0)};
}

double LengthOf(const std::vector<Interval>& disjoint) {
  double seconds = 0;
  for (const Interval& interval : disjoint) seconds += interval.second - interval.first;
  return seconds;
}

}  // namespace

StepTiming SummariseStep(const std::vector<Span>& spans) {
  StepTiming timing;
  std::vector<Interval> computing, communicating;
  double first = std::numeric_limits<double>::infinity();
  double last = 0;
  for (const Span& span : spans) {
    if (IsBackgroundLane(span.lane)) continue;
    const Interval interval = Within(span);
    first = std::min(first, interval.first);
    last = std::max(last, interval.second);
    if (span.op != v1::COMM_OP_UNSPECIFIED) {
      communicating.push_back(interval);
    } else if (span.lane == LaneId::kCompute) {
      computing.push_back(interval);
    }
  }
  timing.step_seconds = std::max(0.0, last - first);
  const std::vector<Interval> busy = Union(std::move(computing));
  timing.compute_seconds = LengthOf(busy);
  const std::vector<Interval> communication = Union(std::move(communicating));
  timing.exposed_seconds = LengthOf(communication);
  for (const Interval& interval : communication) timing.exposed_seconds -= Overlap(interval, busy);

  std::map<v1::CommOp, v1::OpTime> ops;
  for (const Span& span : spans) {
    if (span.op == v1::COMM_OP_UNSPECIFIED) continue;
    const double seconds = span.end_seconds - span.start_seconds;
    const Interval interval = Within(span);
    v1::OpTime& op = ops[span.op];
    op.set_op(span.op);
    op.set_seconds(op.seconds() + seconds);
    op.set_exposed_seconds(op.exposed_seconds() + interval.second - interval.first - Overlap(interval, busy));
    op.set_bytes(op.bytes() + span.received_bytes);
    op.set_count(op.count() + 1);
  }
  for (auto& entry : ops) timing.ops.push_back(std::move(entry.second));
  return timing;
}

}  // namespace fsdpd
