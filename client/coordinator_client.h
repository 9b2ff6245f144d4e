// The C++ client of a coordinator: typed calls, deadlines, retries, and errors with their details decoded.
//
//   CoordinatorClient client("127.0.0.1:7777", {});
//   FSDPD_RETURN_IF_ERROR(client.Connect());                  // optional: a quick and readable "not there"
//   v1::SubmitJobRequest request;  request.set_request_id(NewToken());  ...
//   absl::StatusOr<v1::SubmitJobResponse> response = client.SubmitJob(request);
//
// Of several coordinators ("HOST:PORT,HOST:PORT") one leads. What another one may not do itself it has not
// done, and it says who leads: that one is asked then, also where it is not in the list. Who is gone, or says
// nothing when Connect() asks, is passed over.
//
// Unary calls have `call_timeout`, SearchPlans() has `search_timeout`. They are repeated on UNAVAILABLE
// within it, by RetryInfo or with growing pauses: all but DeleteJob and DeleteNode are idempotent by contract
// (coordinator.proto) as long as a submit carries a request_id; one without is tried once, and so is one with
// an etag, which an answer that was lost has made old. Streams have no deadline and are not repeated
// (client/job_follow.h does, by revision).
//
// Errors: the code of the wire, the message of the server, and google.rpc details as payloads; ReasonOf() and
// FieldViolationsOf() read them. UNAVAILABLE: no coordinator there, or it went away. DEADLINE_EXCEEDED: it is
// there and did not answer in time.
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
#include "base/violation.h"
#include "client/interrupt.h"
#include "proto/fsdpd/v1/coordinator.pb.h"

namespace fsdpd {

// ErrorInfo's reason ("JOB_NOT_FOUND"), "" without one.
std::string ReasonOf(const absl::Status& status);

// BadRequest's field violations; empty without them.
Violations FieldViolationsOf(const absl::Status& status);

class CoordinatorClient {
 public:
  struct Options {
    absl::Duration call_timeout = absl::Seconds(10);
    absl::Duration connect_timeout = absl::Milliseconds(2500);
    std::string trusted = "";  // PEM of the authorities of the coordinator's certificate; empty: plaintext.
    std::string token = "";    // Says who calls; goes over TLS only. May be empty.
    // Whether a call on which nobody is there is made again within call_timeout. Else it fails at once, for a
    // caller that looks again by itself and says meanwhile that the connection is lost.
    bool repeats = true;
    // Of SearchPlans(): a coordinator computes for most of the time that it is given.
    absl::Duration search_timeout = absl::Seconds(40);
  };

  CoordinatorClient(std::string addresses, Options options);
  ~CoordinatorClient();

  // UNAVAILABLE, with the reason of the last attempt, when nobody could be reached for connect_timeout.
  // DEADLINE_EXCEEDED when somebody may be there and said nothing for call_timeout.
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
  absl::StatusOr<v1::GetStepCourseResponse> GetStepCourse(const v1::GetStepCourseRequest& request);
  absl::StatusOr<v1::GetVersionResponse> GetVersion(const v1::GetVersionRequest& request);

  // All return when the server ends the stream, with its status; CANCELLED when `interrupt` fired.
  absl::Status WatchJob(const v1::WatchJobRequest& request, Interrupt* interrupt,
                        const std::function<void(const v1::WatchJobResponse&)>& on_update);
  absl::Status WatchEvents(const v1::WatchEventsRequest& request, Interrupt* interrupt,
                           const std::function<void(const v1::WatchEventsResponse&)>& on_update);
  absl::Status TailLogs(const v1::TailLogsRequest& request, Interrupt* interrupt,
                        const std::function<void(const v1::TailLogsResponse&)>& on_line);
  absl::Status TraceJob(const v1::TraceJobRequest& request, Interrupt* interrupt,
                        const std::function<void(const v1::TraceJobResponse&)>& on_update);

  const std::string& address() const { return address_; }  // As it was given.

 private:
  struct Place;
  absl::Status ConnectTo(Place* place, absl::Time until, absl::Time deadline);
  std::shared_ptr<Place> Asked();
  // Asked(), after a bounded wait for its channel if the last connect failed.
  std::shared_ptr<Place> Reconnected(absl::Time deadline, Interrupt* interrupt);
  // After `status` of `asked`: whether another one is to be asked, at once.
  bool Move(const Place& asked, const absl::Status& status);
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
  std::vector<std::shared_ptr<Place>> places_ ABSL_GUARDED_BY(mutex_);
  size_t asked_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace fsdpd
