// Call path of every method, for example SubmitJob: the authorizer authenticates and authorizes the caller,
// JobService::Submit does the work, and the result is written to the audit log. Methods differ in the object
// that the audit log names.
#include "coordinator/api/guarded_api.h"

#include <absl/status/status.h>

#include "coordinator/access/peer.h"
#include "coordinator/metrics/call_meter.h"
#include "coordinator/request/errors.h"

namespace fsdpd {
namespace {

constexpr size_t kMaxObject = 253;  // Limit of a node name; job ids are shorter.

// The target of a request: a job by `id`, or a node. Empty if it has none.
std::string Named(const google::protobuf::Message& request, const char* field_name) {
  const auto* field = request.GetDescriptor()->FindFieldByName(field_name);
  if (field == nullptr || field->is_repeated() ||
      field->cpp_type() != google::protobuf::FieldDescriptor::CPPTYPE_STRING) {
    return "";
  }
  return request.GetReflection()->GetString(request, field);
}

}  // namespace

grpc::Status GuardedApi::Guarded(const char* method, Context* context, const std::string& job_id,
                                 const std::string* object,
                                 const std::function<grpc::Status(const Caller&)>& handle) {
  CallMeter meter(meters_, method);
  const absl::StatusOr<Caller> caller = authorizer_->Identify(*context);
  const absl::Status permitted = caller.ok() ? authorizer_->Permit(*caller, method, job_id) : caller.status();
  const grpc::Status status = permitted.ok() ? handle(*caller) : ToGrpc(permitted);
  meter.End(status);
  if (audit_ == nullptr || (permitted.ok() && !PermissionOf(method).changes)) return status;
  AuditRecord record;
  record.time = clock_->Wall();
  record.unauthenticated = !caller.ok();
  if (caller.ok() && !caller->name.empty()) {
    record.who = caller->name;
    record.role = NameOf(caller->role);
  }
  record.from = PeerOf(*context);
  record.method = method;
  record.object = object->size() <= kMaxObject ? *object : "(too long)";
  record.outcome = absl::StatusCodeToString(static_cast<absl::StatusCode>(status.error_code()));
  audit_->Write(record);
  return status;
}

template <typename Request, typename Answer>
grpc::Status GuardedApi::Call(const char* method, Handler<Request, Answer> handler, Context* context,
                              const Request* request, Answer* answer, std::optional<ReaderKind> reads) {
  const std::string job_id = Named(*request, "id");
  const std::string object = job_id.empty() ? Named(*request, "node") : job_id;
  return Guarded(method, context, job_id, &object, [&](const Caller& caller) {
    if (!reads.has_value()) return (jobs_->*handler)(context, request, answer);
    const ReaderStreams::Place place(&streams_, caller.name, *reads);
    return place.status().ok() ? (jobs_->*handler)(context, request, answer) : ToGrpc(place.status());
  });
}

grpc::Status GuardedApi::SubmitJob(Context* c, const v1::SubmitJobRequest* q, v1::SubmitJobResponse* a) {
  std::string submitted;
  return Guarded("SubmitJob", c, "", &submitted, [&](const Caller& caller) {
    const absl::Status status = jobs_->Submit(caller, *q, a);
    submitted = a->job().id();
    return ToGrpc(status);
  });
}
grpc::Status GuardedApi::ValidateJob(Context* c, const v1::ValidateJobRequest* q,
                                     v1::ValidateJobResponse* a) {
  return Call("ValidateJob", &JobService::ValidateJob, c, q, a);
}
grpc::Status GuardedApi::PlanJob(Context* c, const v1::PlanJobRequest* q, v1::PlanJobResponse* a) {
  return Call("PlanJob", &JobService::PlanJob, c, q, a);
}
grpc::Status GuardedApi::SearchPlans(Context* c, const v1::SearchPlansRequest* q,
                                     v1::SearchPlansResponse* a) {
  return Call("SearchPlans", &JobService::SearchPlans, c, q, a);
}
grpc::Status GuardedApi::GetJob(Context* c, const v1::GetJobRequest* q, v1::GetJobResponse* a) {
  return Call("GetJob", &JobService::GetJob, c, q, a);
}
grpc::Status GuardedApi::ListJobs(Context* c, const v1::ListJobsRequest* q, v1::ListJobsResponse* a) {
  const std::string nothing;
  return Guarded("ListJobs", c, "", &nothing,
                 [&](const Caller& caller) { return ToGrpc(jobs_->List(caller, *q, a)); });
}
grpc::Status GuardedApi::WatchJob(Context* c, const v1::WatchJobRequest* q,
                                  grpc::ServerWriter<v1::WatchJobResponse>* a) {
  return Call("WatchJob", &JobService::WatchJob, c, q, a, ReaderKind::kWatch);
}
grpc::Status GuardedApi::CancelJob(Context* c, const v1::CancelJobRequest* q, v1::CancelJobResponse* a) {
  return Call("CancelJob", &JobService::CancelJob, c, q, a);
}
grpc::Status GuardedApi::PauseJob(Context* c, const v1::PauseJobRequest* q, v1::PauseJobResponse* a) {
  return Call("PauseJob", &JobService::PauseJob, c, q, a);
}
grpc::Status GuardedApi::ResumeJob(Context* c, const v1::ResumeJobRequest* q, v1::ResumeJobResponse* a) {
  return Call("ResumeJob", &JobService::ResumeJob, c, q, a);
}
grpc::Status GuardedApi::RetryJob(Context* c, const v1::RetryJobRequest* q, v1::RetryJobResponse* a) {
  return Call("RetryJob", &JobService::RetryJob, c, q, a);
}
grpc::Status GuardedApi::DeleteJob(Context* c, const v1::DeleteJobRequest* q, v1::DeleteJobResponse* a) {
  return Call("DeleteJob", &JobService::DeleteJob, c, q, a);
}
grpc::Status GuardedApi::TailLogs(Context* c, const v1::TailLogsRequest* q,
                                  grpc::ServerWriter<v1::TailLogsResponse>* a) {
  return Call("TailLogs", &JobService::TailLogs, c, q, a, ReaderKind::kLogs);
}
grpc::Status GuardedApi::TraceJob(Context* c, const v1::TraceJobRequest* q,
                                  grpc::ServerWriter<v1::TraceJobResponse>* a) {
  return Call("TraceJob", &JobService::TraceJob, c, q, a, ReaderKind::kLogs);
}
grpc::Status GuardedApi::ListSteps(Context* c, const v1::ListStepsRequest* q, v1::ListStepsResponse* a) {
  return Call("ListSteps", &JobService::ListSteps, c, q, a, ReaderKind::kLogs);
}
grpc::Status GuardedApi::GetStepTimeline(Context* c, const v1::GetStepTimelineRequest* q,
                                         v1::GetStepTimelineResponse* a) {
  return Call("GetStepTimeline", &JobService::GetStepTimeline, c, q, a);
}
grpc::Status GuardedApi::ListNodes(Context* c, const v1::ListNodesRequest* q, v1::ListNodesResponse* a) {
  return Call("ListNodes", &JobService::ListNodes, c, q, a);
}
grpc::Status GuardedApi::CordonNode(Context* c, const v1::CordonNodeRequest* q, v1::CordonNodeResponse* a) {
  return Call("CordonNode", &JobService::CordonNode, c, q, a);
}
grpc::Status GuardedApi::UncordonNode(Context* c, const v1::UncordonNodeRequest* q,
                                      v1::UncordonNodeResponse* a) {
  return Call("UncordonNode", &JobService::UncordonNode, c, q, a);
}
grpc::Status GuardedApi::ListEvents(Context* c, const v1::ListEventsRequest* q, v1::ListEventsResponse* a) {
  return Call("ListEvents", &JobService::ListEvents, c, q, a);
}
grpc::Status GuardedApi::WatchEvents(Context* c, const v1::WatchEventsRequest* q,
                                     grpc::ServerWriter<v1::WatchEventsResponse>* a) {
  return Call("WatchEvents", &JobService::WatchEvents, c, q, a, ReaderKind::kWatch);
}
grpc::Status GuardedApi::DrainNode(Context* c, const v1::DrainNodeRequest* q, v1::DrainNodeResponse* a) {
  return Call("DrainNode", &JobService::DrainNode, c, q, a);
}
grpc::Status GuardedApi::DeleteNode(Context* c, const v1::DeleteNodeRequest* q, v1::DeleteNodeResponse* a) {
  return Call("DeleteNode", &JobService::DeleteNode, c, q, a);
}
grpc::Status GuardedApi::PreflightNode(Context* c, const v1::PreflightNodeRequest* q,
                                       v1::PreflightNodeResponse* a) {
  return Call("PreflightNode", &JobService::PreflightNode, c, q, a);
}
grpc::Status GuardedApi::GetVersion(Context* c, const v1::GetVersionRequest* q, v1::GetVersionResponse* a) {
  return Call("GetVersion", &JobService::GetVersion, c, q, a);
}

}  // namespace fsdpd
