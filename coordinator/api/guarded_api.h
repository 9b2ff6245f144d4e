// Public API with access control: every method is authorized before it runs (authorizer.h) and recorded in
// the audit log afterwards (audit_log.h). A method that is not listed here returns UNIMPLEMENTED to every
// caller.
//
// Thread-safe. Borrows its constructor arguments.
#pragma once

#include <grpcpp/grpcpp.h>

#include <functional>
#include <optional>
#include <string>

#include "base/clock.h"
#include "coordinator/access/audit_log.h"
#include "coordinator/access/authorizer.h"
#include "coordinator/api/job_service.h"
#include "coordinator/api/reader_streams.h"
#include "proto/fsdpd/v1/coordinator.grpc.pb.h"

namespace fsdpd {

class Meters;

class GuardedApi final : public v1::Coordinator::Service {
 public:
  // `audit`: null if there is no audit log.
  GuardedApi(JobService* jobs, const Authorizer* authorizer, AuditLog* audit, const Clock* clock,
             Meters* meters)
      : jobs_(jobs), authorizer_(authorizer), audit_(audit), clock_(clock), meters_(meters) {}

  using Context = grpc::ServerContext;
  grpc::Status SubmitJob(Context* c, const v1::SubmitJobRequest* q, v1::SubmitJobResponse* a) override;
  grpc::Status ValidateJob(Context* c, const v1::ValidateJobRequest* q, v1::ValidateJobResponse* a) override;
  grpc::Status PlanJob(Context* c, const v1::PlanJobRequest* q, v1::PlanJobResponse* a) override;
  grpc::Status SearchPlans(Context* c, const v1::SearchPlansRequest* q, v1::SearchPlansResponse* a) override;
  grpc::Status GetJob(Context* c, const v1::GetJobRequest* q, v1::GetJobResponse* a) override;
  grpc::Status ListJobs(Context* c, const v1::ListJobsRequest* q, v1::ListJobsResponse* a) override;
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
  grpc::Status ListNodes(Context* c, const v1::ListNodesRequest* q, v1::ListNodesResponse* a) override;
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
  grpc::Status GetVersion(Context* c, const v1::GetVersionRequest* q, v1::GetVersionResponse* a) override;

 private:
  template <typename Request, typename Answer>
  using Handler = grpc::Status (JobService::*)(Context*, const Request*, Answer*);

  // `object`: the target of the call, read when the call has ended.
  grpc::Status Guarded(const char* method, Context* context, const std::string& job_id,
                       const std::string* object, const std::function<grpc::Status(const Caller&)>& handle);
  // `reads`: set for a call that holds a thread while it waits for a job, events or agents.
  template <typename Request, typename Answer>
  grpc::Status Call(const char* method, Handler<Request, Answer> handler, Context* context,
                    const Request* request, Answer* answer, std::optional<ReaderKind> reads = std::nullopt);

  JobService* const jobs_;
  const Authorizer* const authorizer_;
  AuditLog* const audit_;
  const Clock* const clock_;
  Meters* const meters_;
  ReaderStreams streams_;
};

}  // namespace fsdpd
