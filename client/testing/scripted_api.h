// ScriptedApi: a fake coordinator on loopback with scripted responses, for tests of how clients handle
// rejected calls, lost connections and broken streams.
//
// Each RPC calls its hook; an RPC without a hook returns UNIMPLEMENTED. Hooks run on threads of gRPC and may
// be replaced at any time.
#pragma once

#include <absl/time/time.h>
#include <grpcpp/grpcpp.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "proto/fsdpd/v1/coordinator.grpc.pb.h"

namespace fsdpd {

// Makes a grpc::Status with the google.rpc details that the coordinator sends.
struct FieldText {
  std::string field;
  std::string description;
};
grpc::Status RefusalWithDetails(grpc::StatusCode code, const std::string& message, const std::string& reason,
                                const std::vector<FieldText>& fields = {},
                                const std::map<std::string, std::string>& metadata = {},
                                absl::Duration retry_after = absl::ZeroDuration());

// A response that the test sets and gRPC's threads call. The lock is required for ThreadSanitizer: gRPC is
// not instrumented, so its synchronization is invisible to it.
template <typename... Args>
class Answer {
 public:
  using Function = std::function<grpc::Status(Args...)>;

  ~Answer() { Set(nullptr); }
  void operator=(Function function) { Set(std::move(function)); }

  grpc::Status operator()(Args... args) const {
    const Function function = Get();
    if (function) return function(args...);
    return grpc::Status(grpc::StatusCode::UNIMPLEMENTED, "the test did not expect this call");
  }

 private:
  void Set(Function function) {
    MutexLock lock(&mutex_);
    function_ = std::move(function);
  }
  Function Get() const {
    MutexLock lock(&mutex_);
    return function_;
  }

  mutable Mutex mutex_;
  Function function_ ABSL_GUARDED_BY(mutex_);
};

class ScriptedApi : public v1::Coordinator::Service {
 public:
  template <typename Request, typename Response>
  using Hook = Answer<const Request&, Response*>;
  template <typename Request, typename Response>
  using StreamHook = Answer<const Request&, grpc::ServerContext*, grpc::ServerWriter<Response>*>;

  Hook<v1::SubmitJobRequest, v1::SubmitJobResponse> on_submit;
  Hook<v1::ValidateJobRequest, v1::ValidateJobResponse> on_validate;
  Hook<v1::PlanJobRequest, v1::PlanJobResponse> on_plan;
  Hook<v1::SearchPlansRequest, v1::SearchPlansResponse> on_search;
  Hook<v1::GetJobRequest, v1::GetJobResponse> on_get;
  Hook<v1::ListJobsRequest, v1::ListJobsResponse> on_list;
  Hook<v1::CancelJobRequest, v1::CancelJobResponse> on_cancel;
  Hook<v1::PauseJobRequest, v1::PauseJobResponse> on_pause;
  Hook<v1::ResumeJobRequest, v1::ResumeJobResponse> on_resume;
  Hook<v1::RetryJobRequest, v1::RetryJobResponse> on_retry;
  Hook<v1::DeleteJobRequest, v1::DeleteJobResponse> on_delete;
  Hook<v1::ListNodesRequest, v1::ListNodesResponse> on_nodes;
  Hook<v1::CordonNodeRequest, v1::CordonNodeResponse> on_cordon;
  Hook<v1::UncordonNodeRequest, v1::UncordonNodeResponse> on_uncordon;
  Hook<v1::PreflightNodeRequest, v1::PreflightNodeResponse> on_preflight;
  Hook<v1::DrainNodeRequest, v1::DrainNodeResponse> on_drain;
  Hook<v1::DeleteNodeRequest, v1::DeleteNodeResponse> on_delete_node;
  Hook<v1::ListEventsRequest, v1::ListEventsResponse> on_events;
  Hook<v1::ListStepsRequest, v1::ListStepsResponse> on_steps;
  Hook<v1::GetStepTimelineRequest, v1::GetStepTimelineResponse> on_timeline;
  StreamHook<v1::WatchEventsRequest, v1::WatchEventsResponse> on_watch_events;
  Hook<v1::GetVersionRequest, v1::GetVersionResponse> on_version;
  StreamHook<v1::WatchJobRequest, v1::WatchJobResponse> on_watch;
  StreamHook<v1::TailLogsRequest, v1::TailLogsResponse> on_logs;
  StreamHook<v1::TraceJobRequest, v1::TraceJobResponse> on_trace;

  ~ScriptedApi() override { Stop(); }

  // Listens on 127.0.0.1, on a free port the first time and on the same port after a Stop().
  void Start();
  // Ends all calls. The address then refuses connections.
  void Stop();
  std::string address() const;

 private:
  using Context = grpc::ServerContext;
  grpc::Status SubmitJob(Context*, const v1::SubmitJobRequest* q, v1::SubmitJobResponse* a) override;
  grpc::Status ValidateJob(Context*, const v1::ValidateJobRequest* q, v1::ValidateJobResponse* a) override;
  grpc::Status PlanJob(Context*, const v1::PlanJobRequest* q, v1::PlanJobResponse* a) override;
  grpc::Status SearchPlans(Context*, const v1::SearchPlansRequest* q, v1::SearchPlansResponse* a) override;
  grpc::Status GetJob(Context*, const v1::GetJobRequest* q, v1::GetJobResponse* a) override;
  grpc::Status ListJobs(Context*, const v1::ListJobsRequest* q, v1::ListJobsResponse* a) override;
  grpc::Status CancelJob(Context*, const v1::CancelJobRequest* q, v1::CancelJobResponse* a) override;
  grpc::Status PauseJob(Context*, const v1::PauseJobRequest* q, v1::PauseJobResponse* a) override;
  grpc::Status ResumeJob(Context*, const v1::ResumeJobRequest* q, v1::ResumeJobResponse* a) override;
  grpc::Status RetryJob(Context*, const v1::RetryJobRequest* q, v1::RetryJobResponse* a) override;
  grpc::Status DeleteJob(Context*, const v1::DeleteJobRequest* q, v1::DeleteJobResponse* a) override;
  grpc::Status ListNodes(Context*, const v1::ListNodesRequest* q, v1::ListNodesResponse* a) override;
  grpc::Status CordonNode(Context*, const v1::CordonNodeRequest* q, v1::CordonNodeResponse* a) override;
  grpc::Status UncordonNode(Context*, const v1::UncordonNodeRequest* q, v1::UncordonNodeResponse* a) override;
  grpc::Status PreflightNode(Context*, const v1::PreflightNodeRequest* q,
                             v1::PreflightNodeResponse* a) override;
  grpc::Status DrainNode(Context*, const v1::DrainNodeRequest* q, v1::DrainNodeResponse* a) override;
  grpc::Status DeleteNode(Context*, const v1::DeleteNodeRequest* q, v1::DeleteNodeResponse* a) override;
  grpc::Status ListEvents(Context*, const v1::ListEventsRequest* q, v1::ListEventsResponse* a) override;
  grpc::Status ListSteps(Context*, const v1::ListStepsRequest* q, v1::ListStepsResponse* a) override;
  grpc::Status GetStepTimeline(Context*, const v1::GetStepTimelineRequest* q,
                               v1::GetStepTimelineResponse* a) override;
  grpc::Status WatchEvents(Context* c, const v1::WatchEventsRequest* q,
                           grpc::ServerWriter<v1::WatchEventsResponse>* w) override;
  grpc::Status GetVersion(Context*, const v1::GetVersionRequest* q, v1::GetVersionResponse* a) override;
  grpc::Status WatchJob(Context* c, const v1::WatchJobRequest* q,
                        grpc::ServerWriter<v1::WatchJobResponse>* w) override;
  grpc::Status TailLogs(Context* c, const v1::TailLogsRequest* q,
                        grpc::ServerWriter<v1::TailLogsResponse>* w) override;
  grpc::Status TraceJob(Context* c, const v1::TraceJobRequest* q,
                        grpc::ServerWriter<v1::TraceJobResponse>* w) override;

  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace fsdpd
