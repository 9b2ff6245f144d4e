#include "coordinator/agents/step_history.h"

#include <absl/strings/str_cat.h>
#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <limits>
#include <map>
#include <set>

namespace fsdpd {
namespace {

constexpr int64_t kForEver = std::numeric_limits<int64_t>::max();

struct Span {
  int64_t first = 0, last = 0;
};

// The last step of each attempt that is part of the run: up to the step before the one at which a later
// attempt resumed.
class Attempts {
 public:
  Attempts(const StepQuery& query, const std::vector<NodeSteps>& nodes) : query_(query) {
    for (const NodeSteps& node : nodes) {
      for (const v1::StepSegment& segment : node.segments) began_[segment.attempt()] = segment.began();
    }
  }
  int64_t LastOf(int32_t attempt) const {
    if (query_.attempt.has_value()) return *query_.attempt == attempt ? kForEver : 0;
    int64_t last = kForEver;
    for (auto later = began_.upper_bound(attempt); later != began_.end(); ++later)
      last = std::min(last, later->second - 1);
    return last;
  }
  const std::map<int32_t, int64_t>& began() const { return began_; }

 private:
  const StepQuery& query_;
  std::map<int32_t, int64_t> began_;
};

// Returns the recorded spans of the run, sorted by their first step.
std::vector<Span> Kept(const Attempts& attempts, const std::vector<NodeSteps>& nodes) {
  std::vector<Span> spans;
  for (const NodeSteps& node : nodes) {
    for (const v1::StepSegment& segment : node.segments) {
      const Span span{segment.first(), std::min(segment.last(), attempts.LastOf(segment.attempt()))};
      if (span.first <= span.last) spans.push_back(span);
    }
  }
  std::sort(spans.begin(), spans.end(), [](const Span& a, const Span& b) { return a.first < b.first; });
  return spans;
}

// Adds the gaps between the spans within `expected`. REQUIRES: `kept` is sorted by the first step.
void AddMissing(const std::vector<Span>& kept, Span expected, v1::ListStepsResponse* response) {
  const auto add = [&](int64_t first, int64_t last) {
    if (first > last) return;
    v1::ListStepsResponse::MissingSteps* missing = response->add_missing();
    missing->set_first(first);
    missing->set_last(last);
  };
  int64_t next = expected.first;
  for (const Span& span : kept) {
    if (span.first > expected.last) break;
    add(next, std::min(span.first - 1, expected.last));
    next = std::max(next, span.last + 1);
  }
  add(next, expected.last);
}

}  // namespace

absl::Status TakeStepLine(const v1::LogLines::Line& line, absl::FunctionRef<bool(int32_t)> may_have,
                          NodeSteps* node) {
  // An agent of a newer release may send more fields.
  google::protobuf::util::JsonParseOptions options;
  options.ignore_unknown_fields = true;
  const auto take = [&](auto* all) {
    auto& one = all->emplace_back();
    absl::Status taken;
    if (!google::protobuf::util::JsonStringToMessage(line.line(), &one, options).ok()) {
      taken = absl::DataLossError(absl::StrCat("step record: cannot parse the record of step ", line.step()));
    } else if (!may_have(one.attempt())) {
      taken = absl::PermissionDeniedError(
          absl::StrCat("step record: the node did not host rank 0 of attempt ", one.attempt()));
    }
    if (!taken.ok()) all->pop_back();
    return taken;
  };
  return line.step() == 0 ? take(&node->segments) : take(&node->records);
}

v1::ListStepsResponse JoinSteps(const StepQuery& query, const KnownSteps& made,
                                const std::vector<NodeSteps>& nodes) {
  const Attempts attempts(query, nodes);
  // If several attempts made a step, the newest one is part of the run.
  std::map<int64_t, const v1::StepRecord*> steps;
  int64_t complete = query.last;  // Last step for which every node has sent all its records.
  for (const NodeSteps& node : nodes) {
    if (static_cast<int>(node.records.size()) >= query.limit)
      complete = std::min(complete, node.records.back().step());
    for (const v1::StepRecord& record : node.records) {
      if (record.step() > attempts.LastOf(record.attempt())) continue;
      const v1::StepRecord*& known = steps[record.step()];
      if (known == nullptr || known->attempt() < record.attempt()) known = &record;
    }
  }
  v1::ListStepsResponse response;
  for (const auto& [step, record] : steps) {
    if (step > complete) break;
    *response.add_steps() = *record;
    if (response.steps_size() < query.limit) continue;
    complete = step;
    break;
  }
  const std::vector<Span> kept = Kept(attempts, nodes);
  int64_t newest = made.reaches;
  for (const Span& span : kept) newest = std::max(newest, span.last);
  int64_t begins = made.begins;
  if (const auto first = attempts.began().begin(); first != attempts.began().end()) {
    // The run begins where its first attempt began; for a single attempt nothing is expected before its own
    // start.
    if (query.attempt.has_value() || first->first == 1 || begins == 0) begins = first->second;
  }
  if (begins > 0) AddMissing(kept, {std::max(begins, query.first), std::min(complete, newest)}, &response);
  const bool more =
      std::any_of(kept.begin(), kept.end(), [&](const Span& span) { return span.last > complete; });
  if (more && complete < query.last) response.set_next_step(complete + 1);
  return response;
}

bool LacksAttempt(const StepQuery& query, int32_t attempts, const std::vector<NodeSteps>& nodes) {
  std::set<int32_t> known;
  for (const NodeSteps& node : nodes) {
    for (const v1::StepSegment& segment : node.segments) known.insert(segment.attempt());
  }
  if (query.attempt.has_value()) return known.count(*query.attempt) == 0;
  return static_cast<int32_t>(known.size()) < attempts;
}

}  // namespace fsdpd
