// Public API of a standby coordinator. It answers reads of jobs and events from the store; reads of jobs
// carry the store revision in the trailing metadata. All other calls, including watches, are rejected with
// UNAVAILABLE, NOT_LEADER and the leader's address, without effect. Reads are also rejected while etcd does
// not answer.
//
// Callers are authenticated as on a leader (api_gate.h), and rejected ones are written to the audit log. For
// calls that are not served here, the leader checks the permission. Jobs lack what only a leader knows:
// steps since the last write, and the reason why they wait. ListNodes is rejected, because connections and
// free slots are known only to the leader.
//
// Agents' streams are rejected likewise. An agent without a required certificate gets only that error.
//
// Thread-safe. Borrows its parts.
#pragma once

#include <grpcpp/grpcpp.h>

#include <functional>
#include <string>

#include "base/api/api_table.h"
#include "base/clock.h"
#include "coordinator/api/api_call.h"
#include "coordinator/api/api_gate.h"
#include "coordinator/store/etcd_events.h"
#include "coordinator/store/etcd_jobs.h"
#include "proto/fsdpd/v1/agent.grpc.pb.h"
#include "proto/fsdpd/v1/coordinator.grpc.pb.h"

namespace fsdpd {

constexpr char kRevisionMetadata[] = "fsdpd-store-revision";

// The leader as far as this replica knows.
struct LeaderSeen {
  std::string address;        // "" if absent.
  std::string why_no_leader;  // Why no replica can lead; "" if unknown.
  bool etcd_silent = false;   // etcd does not answer, so the leader is unknown and reads would block.
};
using LeaderNow = std::function<LeaderSeen()>;

absl::Status NotLeader(const LeaderSeen& leader);

class StandbyApi final : public v1::Coordinator::Service {
 public:
  StandbyApi(EtcdJobs* jobs, const ApiGate& gate, Clock* clock, LeaderNow leader)
      : jobs_(jobs), events_(jobs), gate_(gate), clock_(clock), leader_(std::move(leader)) {}

#define FSDPD_SERVE(method, Response, standby)                                                              \
  grpc::Status method(grpc::ServerContext* context, const v1::method##Request* request, Response* response) \
      override {                                                                                            \
    return standby(*FindApiMethod(#method), context, *request, response);                                   \
  }
#define FSDPD_UNARY(method, handler, standby, ...) FSDPD_SERVE(method, v1::method##Response, standby)
#define FSDPD_STREAM(method, handler, standby, ...) \
  FSDPD_SERVE(method, grpc::ServerWriter<v1::method##Response>, standby)
  FSDPD_API_TABLE(FSDPD_UNARY, FSDPD_STREAM)
#undef FSDPD_UNARY
#undef FSDPD_STREAM
#undef FSDPD_SERVE

 private:
  template <typename Request, typename Response>
  grpc::Status Answer(const ApiMethod& method, grpc::ServerContext* context, const Request& request,
                      Response* response) {
    return gate_.Pass(method, *context, request, response, [&](const Caller& caller) {
      return Read(ApiCall{context, caller}, request, response);
    });
  }
  grpc::Status Redirect(const ApiMethod& method, grpc::ServerContext* context,
                        const google::protobuf::Message& request, const void* response);
  absl::Status Read(const ApiCall& call, const v1::GetJobRequest& request, v1::GetJobResponse* response);
  absl::Status Read(const ApiCall& call, const v1::ListJobsRequest& request, v1::ListJobsResponse* response);
  absl::Status Read(const ApiCall& call, const v1::ListEventsRequest& request,
                    v1::ListEventsResponse* response);
  absl::Status Read(const ApiCall& call, const v1::GetVersionRequest& request,
                    v1::GetVersionResponse* response);
  absl::Status Readable() const;
  absl::StatusOr<EventPage> StoredEvents(const EventQuery& query);

  EtcdJobs* const jobs_;
  EtcdEvents events_;
  const ApiGate gate_;
  Clock* const clock_;
  const LeaderNow leader_;
};

class StandbyAgents final : public v1::AgentLink::Service {
 public:
  StandbyAgents(const Authorizer* authorizer, LeaderNow leader)
      : authorizer_(authorizer), leader_(std::move(leader)) {}
  grpc::Status Attach(grpc::ServerContext*,
                      grpc::ServerReaderWriter<v1::CoordinatorMessage, v1::AgentMessage>*) override;

 private:
  const Authorizer* const authorizer_;
  const LeaderNow leader_;
};

}  // namespace fsdpd
