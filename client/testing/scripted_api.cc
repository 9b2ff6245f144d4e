#include "client/testing/scripted_api.h"

#include <absl/strings/str_cat.h>

#include <chrono>

#include "base/check.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"

namespace fsdpd {
namespace {

template <typename Detail>
void AddDetail(const Detail& detail, google::rpc::Status* status) {
  status->add_details()->PackFrom(detail);
}

}  // namespace

grpc::Status RefusalWithDetails(grpc::StatusCode code, const std::string& message, const std::string& reason,
                                const std::vector<FieldText>& fields,
                                const std::map<std::string, std::string>& metadata,
                                absl::Duration retry_after) {
  google::rpc::Status status;
  status.set_code(code);
  status.set_message(message);
  google::rpc::ErrorInfo info;
  info.set_domain("fsdpd");
  info.set_reason(reason);
  info.mutable_metadata()->insert(metadata.begin(), metadata.end());
  AddDetail(info, &status);
  google::rpc::BadRequest bad;
  for (const FieldText& field : fields) {
    auto* violation = bad.add_field_violations();
    violation->set_field(field.field);
    violation->set_description(field.description);
  }
  if (!fields.empty()) AddDetail(bad, &status);
  if (retry_after > absl::ZeroDuration()) {
    google::rpc::RetryInfo retry;
    retry.mutable_retry_delay()->set_seconds(absl::ToInt64Seconds(retry_after));
    retry.mutable_retry_delay()->set_nanos(
        static_cast<int>(absl::ToInt64Nanoseconds(retry_after % absl::Seconds(1))));
    AddDetail(retry, &status);
  }
  return grpc::Status(code, message, status.SerializeAsString());
}

void ScriptedApi::Start() {
  grpc::ServerBuilder builder;
  builder.AddListeningPort(absl::StrCat("127.0.0.1:", port_), grpc::InsecureServerCredentials(), &port_);
  builder.RegisterService(this);
  server_ = builder.BuildAndStart();
  FSDPD_CHECK(server_ != nullptr && port_ != 0);
}

void ScriptedApi::Stop() {
  if (server_ == nullptr) return;
  server_->Shutdown(std::chrono::system_clock::now());
  server_->Wait();
  server_.reset();
}

std::string ScriptedApi::address() const { return absl::StrCat("127.0.0.1:", port_); }

grpc::Status ScriptedApi::SubmitJob(Context*, const v1::SubmitJobRequest* q, v1::SubmitJobResponse* a) {
  return on_submit(*q, a);
}
grpc::Status ScriptedApi::ValidateJob(Context*, const v1::ValidateJobRequest* q, v1::ValidateJobResponse* a) {
  return on_validate(*q, a);
}
grpc::Status ScriptedApi::PlanJob(Context*, const v1::PlanJobRequest* q, v1::PlanJobResponse* a) {
  return on_plan(*q, a);
}
grpc::Status ScriptedApi::SearchPlans(Context*, const v1::SearchPlansRequest* q, v1::SearchPlansResponse* a) {
  return on_search(*q, a);
}
grpc::Status ScriptedApi::GetJob(Context*, const v1::GetJobRequest* q, v1::GetJobResponse* a) {
  return on_get(*q, a);
}
grpc::Status ScriptedApi::ListJobs(Context*, const v1::ListJobsRequest* q, v1::ListJobsResponse* a) {
  return on_list(*q, a);
}
grpc::Status ScriptedApi::PauseJob(Context*, const v1::PauseJobRequest* q, v1::PauseJobResponse* a) {
  return on_pause(*q, a);
}
grpc::Status ScriptedApi::ResumeJob(Context*, const v1::ResumeJobRequest* q, v1::ResumeJobResponse* a) {
  return on_resume(*q, a);
}
grpc::Status ScriptedApi::RetryJob(Context*, const v1::RetryJobRequest* q, v1::RetryJobResponse* a) {
  return on_retry(*q, a);
}
grpc::Status ScriptedApi::DeleteJob(Context*, const v1::DeleteJobRequest* q, v1::DeleteJobResponse* a) {
  return on_delete(*q, a);
}
grpc::Status ScriptedApi::CancelJob(Context*, const v1::CancelJobRequest* q, v1::CancelJobResponse* a) {
  return on_cancel(*q, a);
}
grpc::Status ScriptedApi::CordonNode(Context*, const v1::CordonNodeRequest* q, v1::CordonNodeResponse* a) {
  return on_cordon(*q, a);
}
grpc::Status ScriptedApi::UncordonNode(Context*, const v1::UncordonNodeRequest* q,
                                       v1::UncordonNodeResponse* a) {
  return on_uncordon(*q, a);
}
grpc::Status ScriptedApi::PreflightNode(Context*, const v1::PreflightNodeRequest* q,
                                        v1::PreflightNodeResponse* a) {
  return on_preflight(*q, a);
}
grpc::Status ScriptedApi::ListNodes(Context*, const v1::ListNodesRequest* q, v1::ListNodesResponse* a) {
  return on_nodes(*q, a);
}
grpc::Status ScriptedApi::DrainNode(Context*, const v1::DrainNodeRequest* q, v1::DrainNodeResponse* a) {
  return on_drain(*q, a);
}
grpc::Status ScriptedApi::DeleteNode(Context*, const v1::DeleteNodeRequest* q, v1::DeleteNodeResponse* a) {
  return on_delete_node(*q, a);
}
grpc::Status ScriptedApi::ListEvents(Context*, const v1::ListEventsRequest* q, v1::ListEventsResponse* a) {
  return on_events(*q, a);
}
grpc::Status ScriptedApi::ListSteps(Context*, const v1::ListStepsRequest* q, v1::ListStepsResponse* a) {
  return on_steps(*q, a);
}
grpc::Status ScriptedApi::GetStepTimeline(Context*, const v1::GetStepTimelineRequest* q,
                                          v1::GetStepTimelineResponse* a) {
  return on_timeline(*q, a);
}
grpc::Status ScriptedApi::WatchEvents(Context* c, const v1::WatchEventsRequest* q,
                                      grpc::ServerWriter<v1::WatchEventsResponse>* w) {
  return on_watch_events(*q, c, w);
}
grpc::Status ScriptedApi::GetVersion(Context*, const v1::GetVersionRequest* q, v1::GetVersionResponse* a) {
  return on_version(*q, a);
}
grpc::Status ScriptedApi::WatchJob(Context* c, const v1::WatchJobRequest* q,
                                   grpc::ServerWriter<v1::WatchJobResponse>* w) {
  return on_watch(*q, c, w);
}
grpc::Status ScriptedApi::TailLogs(Context* c, const v1::TailLogsRequest* q,
                                   grpc::ServerWriter<v1::TailLogsResponse>* w) {
  return on_logs(*q, c, w);
}

grpc::Status ScriptedApi::TraceJob(Context* c, const v1::TraceJobRequest* q,
                                   grpc::ServerWriter<v1::TraceJobResponse>* w) {
  return on_trace(*q, c, w);
}

}  // namespace fsdpd
