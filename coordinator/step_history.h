// The steps of a job as its nodes have kept them (agent/step_records.h), put together: which of those that
// several attempts have made are the run's, up to where a page is complete, and what is missing. Pure.
#pragma once

#include <absl/functional/function_ref.h>
#include <absl/status/status.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "proto/fsdpd/v1/agent.pb.h"
#include "proto/fsdpd/v1/steps.pb.h"

namespace fsdpd {

struct StepQuery {
  std::optional<int32_t> attempt;  // Not set: those of the run.
  int64_t first = 1, last = 0;     // Included.
  int64_t every = 1;
  int limit = 0;  // Of a page, and of what each node is asked for.
};

// What is known without them.
struct StepsMade {
  int64_t begins = 1;  // The first step of the run; 0: not known.
  int64_t reaches =
      0;  // The newest that was made, where it may be on no node that answers. 0: nodes know better.
};

// One node's.
struct NodeSteps {
  std::vector<v1::StepSegment> segments;
  std::vector<v1::StepRecord> records;  // By step.
};

// Adds a line of a node's answer. DATA_LOSS: it cannot be read. PERMISSION_DENIED: it is about an attempt
// that the node `may_have` no steps of.
absl::Status TakeStepLine(const v1::LogLines::Line& line, absl::FunctionRef<bool(int32_t attempt)> may_have,
                          NodeSteps* node);

// All but `unread`.
v1::ListStepsResponse JoinSteps(const StepQuery& query, const StepsMade& made,
                                const std::vector<NodeSteps>& nodes);

// Whether none of the nodes has steps of some attempt that is asked for, of so many.
bool LacksAttempt(const StepQuery& query, int32_t attempts, const std::vector<NodeSteps>& nodes);

}  // namespace fsdpd
