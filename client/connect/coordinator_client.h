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

#include "base/api/api_table.h"
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

  // Calls by the name of their method, and streams. A stream returns the status with which the server ends
  // it, or CANCELLED if `interrupt` fired.
#define FSDPD_UNARY(method, ...) \
  absl::StatusOr<v1::method##Response> method(const v1::method##Request& request);
#define FSDPD_STREAM(method, ...)                                               \
  absl::Status method(const v1::method##Request& request, Interrupt* interrupt, \
                      const std::function<void(const v1::method##Response&)>& on_message);
  FSDPD_API_TABLE(FSDPD_UNARY, FSDPD_STREAM)
#undef FSDPD_UNARY
#undef FSDPD_STREAM

  const std::string& address() const { return address_; }  // As passed to the constructor.

 private:
  struct Server;
  absl::Status ConnectTo(Server* server, absl::Time until, absl::Time deadline);
  std::shared_ptr<Server> CurrentServer();
  // Like CurrentServer(), after a bounded wait for its channel if the last connect failed.
  std::shared_ptr<Server> ReconnectedServer(absl::Time deadline, Interrupt* interrupt);
  // Selects another coordinator if `status` of `called` requires it. Returns whether to call it immediately.
  bool SwitchServer(const Server& called, const absl::Status& status);
  // `again`: whether the call is safe to repeat. `changes`: whether it has side effects.
  template <typename Request, typename Response, typename Method>
  absl::StatusOr<Response> Call(Method method, const Request& request, bool again, bool changes);
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
