// Client of the coordinator's gRPC API: typed calls with deadlines, retries, failover, and decoded error
// details.
//
//   CoordinatorClient client("127.0.0.1:7777", {});
//   FSDPD_RETURN_IF_ERROR(client.Connect());                  // optional: fails fast if unreachable
//   v1::SubmitJobRequest request;  request.set_request_id(NewToken());  ...
//   absl::StatusOr<v1::SubmitJobResponse> response = client.SubmitJob(request);
//
// Failover: one of several coordinators ("HOST:PORT,HOST:PORT") is the leader. A standby rejects calls
// without side effects and names the leader; the client then calls the leader, even if it is not in the list.
// The client skips coordinators that do not respond.
//
// Retries: unary calls are retried on UNAVAILABLE until `call_timeout` (SearchPlans: `search_timeout`), after
// the delay of RetryInfo or with exponential backoff. This is safe because all calls except DeleteJob and
// DeleteNode are idempotent by contract (coordinator.proto). A submit without a request_id is not retried. A
// call with an etag is not retried either: if only its response was lost, the job's etag has changed. Streams
// have no deadline and are not retried; client/connect/job_follow.h resumes them by revision.
//
// Errors have the gRPC code, the message of the server, and google.rpc details as payloads, which ReasonOf()
// and FieldViolationsOf() decode. UNAVAILABLE: no coordinator is reachable, or the connection broke.
// DEADLINE_EXCEEDED: a coordinator is reachable, and did not respond in time.
//
// Thread-safe. Callbacks of streams run on the calling thread.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <absl/time/time.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "base/spec_text/violation.h"
#include "client/text/interrupt.h"
#include "proto/fsdpd/v1/coordinator.pb.h"

namespace fsdpd {

// The reason of the ErrorInfo detail, such as "JOB_NOT_FOUND"; "" without one.
std::string ReasonOf(const absl::Status& status);

// Whether a call that changes something got no response, so that the change may have been made.
bool MayHaveTakenEffect(const absl::Status& status);

// The field violations of the BadRequest detail; empty without one.
Violations FieldViolationsOf(const absl::Status& status);

class CoordinatorClient {
 public:
  struct Options {
    absl::Duration call_timeout = absl::Seconds(10);
    absl::Duration connect_timeout = absl::Milliseconds(2500);
    std::string trusted = "";  // PEM certificates of the trusted CAs; empty: plaintext.
    std::string token = "";    // Bearer token; sent over TLS only. May be empty.
    // Whether calls are retried on UNAVAILABLE. False for a caller that polls, and that reports a lost
    // connection meanwhile.
    bool repeats = true;
    // Deadline of SearchPlans(). A coordinator computes for most of the time that it is given.
    absl::Duration search_timeout = absl::Seconds(40);
  };

  CoordinatorClient(std::string addresses, Options options);
  ~CoordinatorClient();

  // Returns UNAVAILABLE with the reason of the last attempt if no coordinator is reachable within
  // connect_timeout, and DEADLINE_EXCEEDED if one accepts connections but does not respond within
  // call_timeout.
  absl::Status Connect();

  absl::StatusOr<v1::SubmitJobResponse> SubmitJob(const v1::SubmitJobRequest& request);
  absl::StatusOr<v1::ValidateJobResponse> ValidateJob(const v1::ValidateJobRequest& request);
  absl::StatusOr<v1::PlanJobResponse> PlanJob(const v1::PlanJobRequest& request);
  absl::StatusOr<v1::SearchPlansResponse> SearchPlans(const v1::SearchPlansRequest& request);
  absl::StatusOr<v1::GetJobResponse> GetJob(const v1::GetJobRequest& request);
  absl::StatusOr<v1::ListJobsResponse> ListJobs(const v1::ListJobsRequest& request);
  absl::StatusOr<v1::CancelJobResponse> CancelJob(const v1::CancelJobRequest& request);
  absl::StatusOr<v1::PauseJobResponse> PauseJob(const v1::PauseJobRequest& request);
  absl::StatusOr<v1::ResumeJobResponse> ResumeJob(const v1::ResumeJobRequest& request);
  absl::StatusOr<v1::RetryJobResponse> RetryJob(const v1::RetryJobRequest& request);
  absl::StatusOr<v1::DeleteJobResponse> DeleteJob(const v1::DeleteJobRequest& request);
  absl::StatusOr<v1::ListNodesResponse> ListNodes(const v1::ListNodesRequest& request);
  absl::StatusOr<v1::CordonNodeResponse> CordonNode(const v1::CordonNodeRequest& request);
  absl::StatusOr<v1::UncordonNodeResponse> UncordonNode(const v1::UncordonNodeRequest& request);
  absl::StatusOr<v1::PreflightNodeResponse> PreflightNode(const v1::PreflightNodeRequest& request);
  absl::StatusOr<v1::DrainNodeResponse> DrainNode(const v1::DrainNodeRequest& request);
  absl::StatusOr<v1::DeleteNodeResponse> DeleteNode(const v1::DeleteNodeRequest& request);
  absl::StatusOr<v1::ListEventsResponse> ListEvents(const v1::ListEventsRequest& request);
  absl::StatusOr<v1::ListStepsResponse> ListSteps(const v1::ListStepsRequest& request);
  absl::StatusOr<v1::GetStepTimelineResponse> GetStepTimeline(const v1::GetStepTimelineRequest& request);
  absl::StatusOr<v1::GetVersionResponse> GetVersion(const v1::GetVersionRequest& request);

  // Streams. They return the status with which the server ends the stream, or CANCELLED if `interrupt` fired.
  absl::Status WatchJob(const v1::WatchJobRequest& request, Interrupt* interrupt,
                        const std::function<void(const v1::WatchJobResponse&)>& on_update);
  absl::Status WatchEvents(const v1::WatchEventsRequest& request, Interrupt* interrupt,
                           const std::function<void(const v1::WatchEventsResponse&)>& on_update);
  absl::Status TailLogs(const v1::TailLogsRequest& request, Interrupt* interrupt,
                        const std::function<void(const v1::TailLogsResponse&)>& on_line);
  absl::Status TraceJob(const v1::TraceJobRequest& request, Interrupt* interrupt,
                        const std::function<void(const v1::TraceJobResponse&)>& on_update);

  const std::string& address() const { return address_; }  // As passed to the constructor.

 private:
  struct Server;
  absl::Status ConnectTo(Server* server, absl::Time until, absl::Time deadline);
  std::shared_ptr<Server> CurrentServer();
  // Like CurrentServer(), after a bounded wait for its channel if the last connect failed.
  std::shared_ptr<Server> ReconnectedServer(absl::Time deadline, Interrupt* interrupt);
  // Selects another coordinator if `status` of `called` requires it. Returns whether to call it immediately.
  bool SwitchServer(const Server& called, const absl::Status& status);
  template <typename Request, typename Response, typename Method>
  absl::StatusOr<Response> Call(Method method, const Request& request, bool idempotent = true) {
    return CallWithin<Request, Response>(options_.call_timeout, method, request, idempotent);
  }
  template <typename Request, typename Response, typename Method>
  absl::StatusOr<Response> CallWithin(absl::Duration timeout, Method method, const Request& request,
                                      bool idempotent);
  template <typename Response, typename Open>
  absl::Status ReadStream(const Open& open, Interrupt* interrupt,
                          const std::function<void(const Response&)>& on_message);

  const std::string address_;
  const Options options_;
  Mutex mutex_;
  std::vector<std::shared_ptr<Server>> servers_ ABSL_GUARDED_BY(mutex_);
  size_t current_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace fsdpd
