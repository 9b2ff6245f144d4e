// Public API of a standby coordinator. It answers reads of jobs and events from the store; reads of jobs
// carry the store revision in the trailing metadata. All other calls, including watches, are rejected with
// UNAVAILABLE, NOT_LEADER and the leader's address, without effect. Reads are also rejected while etcd does
// not answer.
//
// Callers are authenticated as on a leader (guarded_api.h), and rejected ones are written to the audit log.
// For calls that are not served here, the leader checks the permission. Jobs lack what only a leader knows:
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

#include "base/clock.h"
#include "coordinator/access/audit_log.h"
#include "coordinator/access/authorizer.h"
#include "coordinator/store/etcd_events.h"
#include "coordinator/store/etcd_jobs.h"
#include "proto/fsdpd/v1/agent.grpc.pb.h"
#include "proto/fsdpd/v1/coordinator.grpc.pb.h"

namespace fsdpd {

class Meters;

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
  // `audit` may be null.
  StandbyApi(EtcdJobs* jobs, const Authorizer* authorizer, AuditLog* audit, Clock* clock, Meters* meters,
             LeaderNow leader)
      : jobs_(jobs),
        events_(jobs),
        authorizer_(authorizer),
        audit_(audit),
        clock_(clock),
        meters_(meters),
        leader_(std::move(leader)) {}

  using Context = grpc::ServerContext;
  grpc::Status GetJob(Context* c, const v1::GetJobRequest* q, v1::GetJobResponse* a) override;
  grpc::Status ListJobs(Context* c, const v1::ListJobsRequest* q, v1::ListJobsResponse* a) override;
  grpc::Status ListNodes(Context* c, const v1::ListNodesRequest* q, v1::ListNodesResponse* a) override;
  grpc::Status GetVersion(Context* c, const v1::GetVersionRequest* q, v1::GetVersionResponse* a) override;

  grpc::Status SubmitJob(Context* c, const v1::SubmitJobRequest* q, v1::SubmitJobResponse* a) override;
  grpc::Status ValidateJob(Context* c, const v1::ValidateJobRequest* q, v1::ValidateJobResponse* a) override;
  grpc::Status PlanJob(Context* c, const v1::PlanJobRequest* q, v1::PlanJobResponse* a) override;
  grpc::Status SearchPlans(Context* c, const v1::SearchPlansRequest* q, v1::SearchPlansResponse* a) override;
  grpc::Status WatchJob(Context* c, const v1::WatchJobRequest* q,
                        grpc::ServerWriter<v1::WatchJobResponse>* a) override;
  grpc::Status CancelJob(Context* c, const v1::CancelJobRequest* q, v1::CancelJobResponse* a) override;
  grpc::Status PauseJob(Context* c, const v1::PauseJobRequest* q, v1::PauseJobResponse* a) override;
  grpc::Status ResumeJob(Context* c, const v1::ResumeJobRequest* q, v1::ResumeJobResponse* a) override;
  grpc::Status RetryJob(Context* c, const v1::RetryJobRequest* q, v1::RetryJobResponse* a) override;
  grpc::Status DeleteJob(Context* c, const v1::DeleteJobRequest* q, v1::DeleteJobResponse* a) override;
  grpc::Status TailLogs(Context* c, const v1::TailLogsRequest* q,
                        grpc::ServerWriter<v1::TailLogsResponse>* a) override;
  grpc::Status TraceJob(Context* c, const v1::TraceJobRequest* q,
                        grpc::ServerWriter<v1::TraceJobResponse>* a) override;
  grpc::Status ListSteps(Context* c, const v1::ListStepsRequest* q, v1::ListStepsResponse* a) override;
  grpc::Status GetStepTimeline(Context* c, const v1::GetStepTimelineRequest* q,
                               v1::GetStepTimelineResponse* a) override;
  grpc::Status CordonNode(Context* c, const v1::CordonNodeRequest* q, v1::CordonNodeResponse* a) override;
  grpc::Status UncordonNode(Context* c, const v1::UncordonNodeRequest* q,
                            v1::UncordonNodeResponse* a) override;
  grpc::Status ListEvents(Context* c, const v1::ListEventsRequest* q, v1::ListEventsResponse* a) override;
  grpc::Status WatchEvents(Context* c, const v1::WatchEventsRequest* q,
                           grpc::ServerWriter<v1::WatchEventsResponse>* a) override;
  grpc::Status DrainNode(Context* c, const v1::DrainNodeRequest* q, v1::DrainNodeResponse* a) override;
  grpc::Status DeleteNode(Context* c, const v1::DeleteNodeRequest* q, v1::DeleteNodeResponse* a) override;
  grpc::Status PreflightNode(Context* c, const v1::PreflightNodeRequest* q,
                             v1::PreflightNodeResponse* a) override;

 private:
  grpc::Status Redirect(const char* method, Context* context);
  // Returns the error for the caller and writes it to the audit log.
  grpc::Status Refused(const char* method, const Context& context, const absl::StatusOr<Caller>& caller,
                       const absl::Status& why);
  absl::Status Readable() const;
  absl::StatusOr<EventPage> StoredEvents(const EventQuery& query);
  grpc::Status Read(const char* method, Context* context,
                    const std::function<absl::Status(const Caller&)>& read);

  EtcdJobs* const jobs_;
  EtcdEvents events_;
  const Authorizer* const authorizer_;
  AuditLog* const audit_;
  Clock* const clock_;
  Meters* const meters_;
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
