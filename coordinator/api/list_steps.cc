#include "coordinator/api/list_steps.h"

#include <absl/strings/ascii.h>
#include <absl/strings/str_cat.h>

#include <algorithm>
#include <limits>

#include "base/check.h"
#include "base/log.h"
#include "coordinator/access/reader_streams.h"
#include "coordinator/agents/step_history.h"
#include "coordinator/attempt/attempt_nodes.h"
#include "coordinator/job/job_machine.h"
#include "coordinator/metrics/meters.h"
#include "coordinator/request/errors.h"

namespace fsdpd {
namespace {

constexpr int kDefaultPage = 1000, kMaxPage = 10000;  // A step has about 150 bytes.

absl::StatusOr<StepQuery> QueryOf(const v1::ListStepsRequest& request, const v1::Job& job) {
  if (job.attempt() == 0) return JobNotLaunched(job.id(), "steps", job.reason());
  StepQuery query;
  if (request.has_attempt()) {
    if (request.attempt() < 1 || request.attempt() > job.attempt())
      return AttemptNotFound(job.id(), job.attempt());
    query.attempt = request.attempt();
  }
  if (request.from_step() < 0) return BadField("from_step", "must not be negative");
  if (request.to_step() < 0) return BadField("to_step", "must not be negative");
  if (request.every() < 0) return BadField("every", "must not be negative");
  if (request.page_size() < 0 || request.page_size() > kMaxPage)
    return BadField("page_size", absl::StrCat("must be from 1 to ", kMaxPage, ", or 0 for ", kDefaultPage));
  query.first = std::max<int64_t>(1, request.from_step());
  // One less than the maximum, so that last + 1 does not overflow.
  query.last = request.to_step() > 0 ? request.to_step() : std::numeric_limits<int64_t>::max() - 1;
  query.every = std::max<int64_t>(1, request.every());
  query.limit = request.page_size() == 0 ? kDefaultPage : request.page_size();
  if (query.first <= query.last) return query;
  return BadField("to_step", absl::StrCat("must not be below from_step (got ", query.last, ", want at least ",
                                          query.first, ")"));
}

// Returns why a node cannot be queried, or "".
std::string WhyNot(const std::string& node, const std::vector<NodeView>& all) {
  const auto view =
      std::find_if(all.begin(), all.end(), [&](const NodeView& each) { return each.info.node() == node; });
  if (view == all.end() || !view->connected) return "its agent is not connected";
  if (view->info.step_records()) return "";
  return absl::StrCat("its agent is of release ", view->info.version(), ", which does not record steps");
}

struct Asked {
  std::string node;
  std::shared_ptr<LogTail> tail;  // Null: it cannot be queried.
  std::string error;              // "": no error.
  NodeSteps steps;
  int forged = 0;  // Lines of attempts whose rank 0 was on another node.
};

void TakeLines(const std::deque<v1::LogLines::Line>& lines, const v1::Job& job, Asked* asked) {
  const auto may_have = [&](int32_t attempt) {
    const bool may = MayHaveSteps(job, attempt, asked->node);
    asked->forged += !may && attempt <= job.attempt();  // A newer attempt may have been launched since.
    return may;
  };
  for (const v1::LogLines::Line& line : lines) {
    const absl::Status taken = TakeStepLine(line, may_have, &asked->steps);
    if (absl::IsDataLoss(taken)) asked->error = std::string(taken.message());
  }
}

void LogForged(const Asked& asked, const v1::Job& job, Meters* meters) {
  if (meters != nullptr) meters->RefusedFromAgent("log");
  LogWarning("rejected steps of attempts whose rank 0 was on another node node=%s job=%s lines=%d",
             asked.node, job.id(), asked.forged);
}

}  // namespace

absl::Status StepCalls::ListSteps(const ApiCall& call, const v1::ListStepsRequest& request,
                                  v1::ListStepsResponse* response) {
  FSDPD_ASSIGN_OR_RETURN(const v1::Job job, jobs_->Find(request.id()));
  FSDPD_ASSIGN_OR_RETURN(const StepQuery query, QueryOf(request, job));
  LogRequest read;
  read.attempt = {job.id(), query.attempt.value_or(0)};
  read.steps.emplace();
  read.steps->set_first(query.first);
  read.steps->set_last(query.last);
  read.steps->set_every(query.every);
  read.steps->set_max_records(query.limit);
  const std::vector<NodeView> all = nodes_->Snapshot();
  std::vector<Asked> asked;
  const std::shared_ptr<void> close(nullptr, [&](void*) {
    for (const Asked& each : asked) {
      if (each.tail != nullptr) logs_->Close(each.tail);
    }
  });
  for (const std::string& node : NodesWithSteps(job, query.attempt, all)) {
    Asked each;
    each.node = node;
    each.error = WhyNot(node, all);
    if (each.error.empty()) each.tail = logs_->Open(read, {node});
    asked.push_back(std::move(each));
  }
  const absl::Time deadline = clock_->Now() + kStepsPatience;
  const auto left = [&] {
    return std::clamp(deadline - clock_->Now(), absl::ZeroDuration(), absl::Duration(kStreamPoll));
  };
  for (Asked& each : asked) {
    if (each.tail == nullptr) continue;
    std::deque<v1::LogLines::Line> lines;
    for (LogTail::Got got; (got = each.tail->Next(left(), &lines)) != LogTail::Got::kEnd;) {
      TakeLines(lines, job, &each);
      FSDPD_RETURN_IF_ERROR(call.CheckOpen());
      if (got == LogTail::Got::kLines || clock_->Now() < deadline) continue;
      each.error = "its agent did not answer in time";
      break;
    }
    if (each.forged > 0) LogForged(each, job, meters_);
    const absl::Status status = each.tail->status();
    if (!status.ok() && !absl::IsNotFound(status)) each.error = std::string(status.message());
    if (!each.error.empty()) each.steps = {};  // A partial answer would look complete.
  }
  std::vector<NodeSteps> nodes;
  for (const Asked& each : asked) nodes.push_back(each.steps);
  const bool newest_known = std::any_of(nodes.begin(), nodes.end(), [&](const NodeSteps& node) {
    return std::any_of(node.segments.begin(), node.segments.end(),
                       [&](const v1::StepSegment& segment) { return segment.attempt() == job.attempt(); });
  });
  KnownSteps made;
  // A run that starts from another job's checkpoint begins at any step.
  made.begins = job.spec().checkpoint().load().empty() ? 1 : 0;
  if (!newest_known && query.attempt.value_or(job.attempt()) == job.attempt())
    made.reaches = job.last_step().step();
  *response = JoinSteps(query, made, nodes);
  if (response->missing().empty() && !LacksAttempt(query, job.attempt(), nodes)) return absl::OkStatus();
  for (const Asked& each : asked) {
    if (each.error.empty()) continue;
    v1::ListStepsResponse::UnreadNode* unread = response->add_unread();
    unread->set_node(each.node);
    unread->set_error(each.error);
  }
  return absl::OkStatus();
}

absl::Status StepCalls::GetStepTimeline(const ApiCall&, const v1::GetStepTimelineRequest& request,
                                        v1::GetStepTimelineResponse* response) {
  FSDPD_ASSIGN_OR_RETURN(const v1::Job job, jobs_->Find(request.id()));
  if (job.attempt() == 0) return JobNotLaunched(job.id(), "steps", job.reason());
  std::optional<v1::GetStepTimelineResponse> found = timelines_->Find(job.id());
  if (!found.has_value()) {
    return Refusal(
        absl::StatusCode::kNotFound, "STEP_TIMELINE_NOT_FOUND",
        absl::StrCat("job ", job.id(), ": no step timeline since this coordinator started; the job is ",
                     absl::AsciiStrToLower(ShortName(job.state())),
                     IsEnded(job.state()) ? " and runs no more steps" : ", and its next step reports one"));
  }
  *response = *std::move(found);
  return absl::OkStatus();
}

}  // namespace fsdpd
