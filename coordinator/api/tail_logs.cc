#include "coordinator/api/tail_logs.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include <algorithm>

#include "base/api/call_limits.h"
#include "base/check.h"
#include "base/limits.h"
#include "coordinator/access/reader_streams.h"
#include "coordinator/attempt/attempt_nodes.h"
#include "coordinator/job/job_machine.h"
#include "coordinator/job/job_plan.h"
#include "coordinator/request/errors.h"

namespace fsdpd {
namespace {

// After an attempt is over, agents send the remaining lines of its ranks, as fast as the reader takes them,
// and then "end". An agent that sends neither for this long is given up, and the reader gets an error. It is
// longer than an agent may be silent without being lost, which ends its part with its own error.
constexpr absl::Duration kSilence = absl::Milliseconds(2 * kAgentLostAfterMs);

constexpr size_t kMaxNodesNamed = 4;  // In a message.

absl::Status CheckRequest(const v1::TailLogsRequest& request, const v1::Job& job) {
  if (request.tail_lines() < 0 || request.tail_lines() > kMaxTailLines)
    return BadField("tail_lines", absl::StrCat("must be 0 to ", kMaxTailLines, " (got ", request.tail_lines(),
                                               "); 0 returns the whole log"));
  if (request.evidence() && request.tail_lines() > 0)
    return BadField("tail_lines", "is not supported with evidence, which is sent whole");
  if (request.evidence() && request.follow()) return BadField("follow", "is not supported with evidence");
  const PlaceRequest asked = RequestOf(job);
  const int64_t world = asked.nodes * asked.ranks_per_node;
  if (request.has_rank() && (request.rank() < 0 || request.rank() >= world)) {
    return BadField("rank", absl::StrCat("job ", job.id(), " has ranks 0..", world - 1));
  }
  if (request.has_attempt() && (request.attempt() < 1 || request.attempt() > std::max(1, job.attempt())))
    return AttemptNotFound(job.id(), job.attempt());
  return absl::OkStatus();
}

// An agent of an older release would send its logs instead.
bool IsTooOld(const NodeView& view) { return view.connected && !view.info.evidence(); }

void RemoveOldAgents(const std::vector<NodeView>& all, std::vector<std::string>* nodes) {
  for (const NodeView& view : all) {
    if (!IsTooOld(view)) continue;
    nodes->erase(std::remove(nodes->begin(), nodes->end(), view.info.node()), nodes->end());
  }
}

// Returns an error if a node that RemoveOldAgents() removed may have evidence of the attempt.
absl::Status RejectOldAgents(const v1::Job& job, int32_t attempt, int32_t rank,
                             const std::vector<NodeView>& all) {
  std::vector<std::string> nodes;
  if (attempt == job.attempt()) {
    nodes = NodesOf(job, attempt, rank, all);
  } else {
    std::vector<NodeView> unasked = all;
    for (NodeView& view : unasked) view.connected = view.connected && !IsTooOld(view);
    nodes = DisconnectedNodesOf(job, attempt, unasked);
  }
  for (const NodeView& view : all) {
    const std::string& node = view.info.node();
    if (!IsTooOld(view) || std::count(nodes.begin(), nodes.end(), node) == 0) continue;
    return WrongState("AGENT_TOO_OLD", absl::StrCat("nodes/", node),
                      absl::StrCat("the agent of node ", node, " is of release ", view.info.version(),
                                   ", which does not support evidence"));
  }
  return absl::OkStatus();
}

absl::Status EvidenceNotFound(const v1::TailLogsRequest& request, const v1::Job& job, int32_t attempt) {
  const v1::Job::Failure& failure = job.failure();
  const std::string who = request.has_rank() ? absl::StrCat("rank ", request.rank()) : std::string("a rank");
  return Refusal(
      absl::StatusCode::kNotFound, "EVIDENCE_NOT_FOUND",
      absl::StrCat("no evidence of ", who, " without progress in attempt ", attempt, " of job ", job.id(),
                   failure.has_hang() && failure.attempt() != attempt
                       ? absl::StrCat("; attempt ", failure.attempt(), " hung: read its evidence")
                       : ""));
}

// No ready node has the attempt's log, but nodes that are not ready may have it.
absl::Status NotFoundOrUnavailable(const v1::Job& job, int32_t attempt, const std::vector<NodeView>& all,
                                   bool evidence, const absl::Status& not_found) {
  const std::vector<std::string> disconnected = DisconnectedNodesOf(job, attempt, all);
  if (disconnected.empty()) return not_found;
  const std::vector<std::string> named(disconnected.begin(),
                                       disconnected.begin() + std::min(disconnected.size(), kMaxNodesNamed));
  return absl::UnavailableError(
      absl::StrCat("no ready node ", evidence ? "has evidence of" : "has the log of", " attempt ", attempt,
                   " of job ", job.id(), "; not connected: ", absl::StrJoin(named, ", "),
                   disconnected.size() > named.size() ? ", ..." : ""));
}

}  // namespace

absl::Status LogCalls::TailAttempt(const ApiCall& call, const v1::TailLogsRequest& request,
                                   const v1::Job& job, int32_t attempt, Writer* writer) {
  const int32_t rank = request.has_rank() ? request.rank() : -1;
  const bool current = attempt == job.attempt();
  const std::vector<NodeView> all = nodes_->Snapshot();
  std::vector<std::string> nodes = NodesOf(job, attempt, rank, all);
  if (request.evidence()) RemoveOldAgents(all, &nodes);
  LogRequest read = {{job.id(), attempt}, rank, request.follow() && !AttemptIsOver(job, attempt)};
  read.tail_lines = request.tail_lines();
  read.evidence = request.evidence();
  read.placements = PlacementsOf(job, attempt);
  // An agent may be queried before it has the launch, and then has no log of the attempt yet.
  const bool awaits_logs = read.follow && job.state() == v1::JOB_STATE_STARTING;
  const std::shared_ptr<LogTail> tail = logs_->Open(read, nodes, awaits_logs);
  const std::shared_ptr<void> close(nullptr, [&](void*) { logs_->Close(tail); });
  absl::Time over = absl::InfiniteFuture();  // Or time of the last lines after that.
  absl::Time asked = clock_->Now();          // Last query of the agents without a log.
  bool wrote = false;
  std::deque<v1::LogLines::Line> lines;
  v1::TailLogsResponse response;
  response.set_evidence(request.evidence());
  for (;;) {
    const LogTail::Got got = tail->Next(kStreamPoll, &lines);
    for (v1::LogLines::Line& line : lines) {
      response.set_rank(line.rank());
      response.set_attempt(line.attempt());
      response.set_line(std::move(*line.mutable_line()));
      response.set_notice(line.notice());
      if (!writer->Write(response)) return absl::CancelledError("the client disconnected");
      wrote = true;
    }
    if (got == LogTail::Got::kEnd) break;
    FSDPD_RETURN_IF_ERROR(call.CheckOpen());
    const absl::Time now = clock_->Now();
    if (over == absl::InfiniteFuture()) {
      FSDPD_ASSIGN_OR_RETURN(const v1::Job fresh, jobs_->Find(job.id()));
      if (AttemptIsOver(fresh, attempt)) over = now;
      const bool launched = fresh.attempt() != attempt || fresh.state() != v1::JOB_STATE_STARTING;
      if (awaits_logs && (now - asked >= kStreamPoll || launched)) {
        asked = now;
        logs_->RequestAgain(read, tail, /*last=*/launched);
      }
    } else if (!lines.empty()) {
      over = now;
    }
    if (now - over >= kSilence) {
      return absl::UnavailableError(absl::StrCat("log of attempt ", attempt, " of job ", job.id(),
                                                 ": incomplete, because not all of its nodes answer"));
    }
  }
  // Nodes that never hosted an older attempt answer NOT_FOUND, and so do nodes whose ranks all progressed. It
  // is an error only if all nodes do.
  absl::Status status = nodes.empty()
                            ? absl::NotFoundError(absl::StrCat("no node has the log of attempt ", attempt,
                                                               " of job ", job.id(), ": none is connected"))
                            : tail->status();
  if (!absl::IsNotFound(status)) return status;
  if (wrote) return absl::OkStatus();
  if (current && !request.evidence()) return status;
  if (request.evidence()) {
    FSDPD_RETURN_IF_ERROR(RejectOldAgents(job, attempt, rank, all));
    status = EvidenceNotFound(request, job, attempt);
    // All of its nodes were queried: one that is not connected would have returned an error.
    if (current) return status;
  }
  return NotFoundOrUnavailable(job, attempt, nodes_->Snapshot(), request.evidence(), status);
}

// Blocks until the job has an attempt after `attempt` or has ended. The watch is opened before the job is
// read, so that no change in between is missed.
absl::StatusOr<v1::Job> LogCalls::AwaitAttempt(const ApiCall& call, const std::string& id, int32_t attempt) {
  v1::WatchJobResponse ignored;
  for (;;) {
    const std::shared_ptr<JobWatch> watch = board_->Watch(id, 0);
    FSDPD_ASSIGN_OR_RETURN(v1::Job job, jobs_->Find(id));
    if (job.attempt() > attempt || IsEnded(job.state())) return job;
    if (watch != nullptr) {
      while (watch->Next(kStreamPoll, &ignored) == JobWatch::Got::kUpdate &&
             ignored.job().attempt() <= attempt) {
      }
    }
    FSDPD_RETURN_IF_ERROR(call.CheckOpen());
  }
}

absl::Status LogCalls::TailLogs(const ApiCall& call, const v1::TailLogsRequest& request, Writer* writer) {
  FSDPD_ASSIGN_OR_RETURN(v1::Job job, jobs_->Find(request.id()));
  FSDPD_RETURN_IF_ERROR(CheckRequest(request, job));
  if (job.attempt() == 0) {
    if (!request.follow() || IsEnded(job.state())) {
      return JobNotLaunched(job.id(), "logs", job.reason());
    }
    FSDPD_ASSIGN_OR_RETURN(job, AwaitAttempt(call, job.id(), 0));
    if (job.attempt() == 0) return absl::OkStatus();
  }
  int32_t attempt = request.has_attempt() ? request.attempt() : job.attempt();
  for (;;) {
    const absl::Status read = TailAttempt(call, request, job, attempt, writer);
    if (!request.follow() || request.has_attempt()) return read;
    if (!read.ok() && !absl::IsNotFound(read)) return read;
    FSDPD_ASSIGN_OR_RETURN(job, AwaitAttempt(call, job.id(), attempt));
    if (job.attempt() == attempt) return read;  // The last attempt, and it had no log.
    attempt = job.attempt();
  }
}

}  // namespace fsdpd
