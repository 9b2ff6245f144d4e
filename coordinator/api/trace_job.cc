#include "coordinator/api/trace_job.h"

#include <absl/strings/str_cat.h>

#include <algorithm>
#include <limits>

#include "base/check.h"
#include "base/limits.h"
#include "coordinator/access/reader_streams.h"
#include "coordinator/agents/trace_order.h"
#include "coordinator/attempt/attempt_nodes.h"
#include "coordinator/job/job_plan.h"
#include "coordinator/request/errors.h"

namespace fsdpd {
namespace {

// As kSilence of tail_logs.cc.
constexpr absl::Duration kSilence = absl::Milliseconds(2 * kAgentLostAfterMs);

absl::Status CheckRequest(const v1::TraceJobRequest& request, const v1::Job& job) {
  if (request.steps() != 0 && request.has_attempt())
    return BadField("attempt", "is not supported with steps, which traces the newest attempt");
  if (request.steps() == 0 && request.memory_snapshot()) return BadField("memory_snapshot", "requires steps");
  const PlaceRequest asked = RequestOf(job);
  const int64_t world = asked.nodes * asked.ranks_per_node;
  if (request.has_rank() && (request.rank() < 0 || request.rank() >= world))
    return BadField("rank", absl::StrCat("job ", job.id(), " has ranks 0..", world - 1));
  if (job.attempt() == 0) return JobNotLaunched(job.id(), "traces", job.reason());
  if (request.has_attempt() && (request.attempt() < 1 || request.attempt() > job.attempt()))
    return AttemptNotFound(job.id(), job.attempt());
  return absl::OkStatus();
}

// An agent of an older release would ignore the order, and answer a request for traces with logs.
absl::Status CheckAgents(const std::vector<std::string>& nodes, const std::vector<NodeView>& all) {
  for (const std::string& node : nodes) {
    const auto view =
        std::find_if(all.begin(), all.end(), [&](const NodeView& each) { return each.info.node() == node; });
    if (view == all.end() || !view->connected)
      return absl::UnavailableError(absl::StrCat("the agent of node ", node, " is not connected"));
    if (view->info.traces()) continue;
    return WrongState("AGENT_TOO_OLD", absl::StrCat("nodes/", node),
                      absl::StrCat("the agent of node ", node, " is of release ", view->info.version(),
                                   ", which does not support traces"));
  }
  return absl::OkStatus();
}

absl::Status TracesNotFound(const v1::Job& job, int32_t attempt) {
  return Refusal(
      absl::StatusCode::kNotFound, "TRACE_NOT_FOUND",
      absl::StrCat("no trace of attempt ", attempt, " of job ", job.id(),
                   " on its nodes; set telemetry.trace_steps, or run `fsdpctl trace` while it runs"));
}

}  // namespace

absl::Status TraceCalls::AwaitTraces(const ApiCall& call, const v1::Job& job,
                                     const v1::TraceJobResponse::Order& order, bool memory_snapshot,
                                     Writer* writer) {
  const std::shared_ptr<TraceWait> wait = traces_->Open(job, order);
  for (const v1::Job::Placement& part : job.placements()) {
    v1::CoordinatorMessage message;
    v1::Trace* trace = message.mutable_trace();
    trace->set_job_id(job.id());
    trace->set_attempt(job.attempt());
    trace->set_first_step(order.first_step());
    trace->set_steps(order.steps());
    trace->set_memory_snapshot(memory_snapshot);
    if (!nodes_->Send(part.node(), std::move(message)))
      return absl::UnavailableError(absl::StrCat("the agent of node ", part.node(), " is not connected"));
  }
  v1::TraceJobResponse response;
  *response.mutable_order() = order;
  if (!writer->Write(response)) return absl::CancelledError("the client disconnected");
  const auto hand_on = [&](absl::Duration timeout) {
    for (v1::TraceJobResponse::Trace& trace : wait->Next(timeout)) {
      *response.mutable_trace() = std::move(trace);
      if (!writer->Write(response)) return absl::CancelledError("the client disconnected");
    }
    return call.CheckOpen();
  };
  bool over = false;
  int64_t missing = wait->missing();
  absl::Time heard = clock_->Now();
  while (!over && wait->missing() > 0) {
    // Read before the results are taken: on a stream, a rank's result precedes its end.
    FSDPD_ASSIGN_OR_RETURN(const v1::Job fresh, jobs_->Find(job.id()));
    over = AttemptIsOver(fresh, job.attempt());
    FSDPD_RETURN_IF_ERROR(hand_on(over ? absl::ZeroDuration() : kStreamPoll));
    // A result is sent only once, and the rank's disk may hang: give up after a silence.
    const bool due = fresh.last_step().step() >= order.first_step() + order.steps();
    if (!due || wait->missing() < missing) heard = clock_->Now();
    missing = wait->missing();
    if (missing > 0 && clock_->Now() - heard >= kSilence) {
      return WrongState("TRACES_MISSING", absl::StrCat("jobs/", job.id()),
                        absl::StrCat(missing, " of the traces did not arrive after the last traced step"));
    }
  }
  FSDPD_RETURN_IF_ERROR(hand_on(absl::ZeroDuration()));
  if (wait->missing() == 0) return absl::OkStatus();
  return WrongState("ATTEMPT_ENDED", absl::StrCat("jobs/", job.id()),
                    absl::StrCat("attempt ", job.attempt(), " of job ", job.id(), " ended before ",
                                 wait->missing(), " of its traces were written"));
}

absl::Status TraceCalls::SendTraces(const ApiCall& call, const v1::Job& job, const LogRequest& read,
                                    Writer* writer) {
  const std::vector<NodeView> all = nodes_->Snapshot();
  const std::vector<std::string> nodes = NodesOf(job, read.attempt.attempt, read.rank, all);
  FSDPD_RETURN_IF_ERROR(CheckAgents(nodes, all));
  const std::shared_ptr<LogTail> tail = logs_->Open(read, nodes);
  const std::shared_ptr<void> close(nullptr, [&](void*) { logs_->Close(tail); });
  absl::Time heard = clock_->Now();
  bool wrote = false;
  std::deque<v1::LogLines::Line> lines;
  v1::TraceJobResponse response;
  for (;;) {
    const LogTail::Got got = tail->Next(kStreamPoll, &lines);
    for (v1::LogLines::Line& line : lines) {
      response.mutable_line()->set_rank(line.rank());
      response.mutable_line()->set_step(line.step());
      response.mutable_line()->set_line(std::move(*line.mutable_line()));
      if (!writer->Write(response)) return absl::CancelledError("the client disconnected");
      wrote = true;
    }
    if (got == LogTail::Got::kEnd) break;
    FSDPD_RETURN_IF_ERROR(call.CheckOpen());
    if (!lines.empty()) heard = clock_->Now();
    if (clock_->Now() - heard >= kSilence)
      return absl::UnavailableError("traces are incomplete, because not all of the job's nodes answer");
  }
  // A node whose ranks could not write has reported that before; a node that never hosted an older attempt
  // has nothing to report.
  const absl::Status status = tail->status();
  return absl::IsNotFound(status) && wrote ? absl::OkStatus() : status;
}

absl::Status TraceCalls::TraceJob(const ApiCall& call, const v1::TraceJobRequest& request, Writer* writer) {
  FSDPD_ASSIGN_OR_RETURN(const v1::Job job, jobs_->Find(request.id()));
  FSDPD_RETURN_IF_ERROR(CheckRequest(request, job));
  LogRequest read;
  read.attempt = {job.id(), request.has_attempt() ? request.attempt() : job.attempt()};
  if (request.has_rank()) read.rank = request.rank();
  read.placements = PlacementsOf(job, read.attempt.attempt);
  read.traces.emplace();
  read.traces->set_first(1);
  read.traces->set_last(std::numeric_limits<int64_t>::max());
  if (request.steps() == 0) {
    const absl::Status sent = SendTraces(call, job, read, writer);
    return absl::IsNotFound(sent) ? TracesNotFound(job, read.attempt.attempt) : sent;
  }
  FSDPD_ASSIGN_OR_RETURN(const v1::TraceJobResponse::Order order, OrderTrace(job, request.steps()));
  const std::vector<NodeView> all = nodes_->Snapshot();
  FSDPD_RETURN_IF_ERROR(CheckAgents(NodesOf(job, job.attempt(), /*rank=*/-1, all), all));
  const absl::Status awaited = AwaitTraces(call, job, order, request.memory_snapshot(), writer);
  if (!awaited.ok() && !absl::IsFailedPrecondition(awaited)) return awaited;
  // Traces that exist are sent even if ranks ended before they had written all.
  read.traces->set_first(order.first_step());
  read.traces->set_last(order.first_step() + order.steps() - 1);
  const absl::Status sent = SendTraces(call, job, read, writer);
  return awaited.ok() && !absl::IsNotFound(sent) ? sent : awaited;
}

}  // namespace fsdpd
