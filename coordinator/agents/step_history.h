// Step history of a job, merged from the records of its nodes (agent/logs/step_records.h): selects the step
// of the run if several attempts made it, up to where a page is complete, and what is missing. Pure.
#pragma once

#include <absl/functional/function_ref.h>
#include <absl/status/status.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "proto/fsdpd/v1/agent.pb.h"
#include "proto/fsdpd/v1/steps.pb.h"

namespace fsdpd {

struct StepQuery {
  std::optional<int32_t> attempt;  // Not set: the steps of the run.
  int64_t first = 1, last = 0;     // Inclusive.
  int64_t every = 1;
  int limit = 0;  // Limit of a page, and of each node's answer.
};

// Facts about the steps that do not come from nodes.
struct KnownSteps {
  int64_t begins = 1;  // The first step of the run; 0: unknown.
  // The newest step, if it may be on a node that does not answer; 0: use the nodes' records.
  int64_t reaches = 0;
};

// One node's answer.
struct NodeSteps {
  std::vector<v1::StepSegment> segments;
  std::vector<v1::StepRecord> records;  // By step.
};

// Adds a line of a node's answer. DATA_LOSS: it cannot be parsed. PERMISSION_DENIED: it is about an attempt
// of which the node cannot have steps (`may_have`).
absl::Status TakeStepLine(const v1::LogLines::Line& line, absl::FunctionRef<bool(int32_t attempt)> may_have,
                          NodeSteps* node);

// Sets all fields except `unread`.
v1::ListStepsResponse JoinSteps(const StepQuery& query, const KnownSteps& made,
                                const std::vector<NodeSteps>& nodes);

// Whether the nodes lack the steps of a requested attempt, of `attempts` in total.
bool LacksAttempt(const StepQuery& query, int32_t attempts, const std::vector<NodeSteps>& nodes);

}  // namespace fsdpd
