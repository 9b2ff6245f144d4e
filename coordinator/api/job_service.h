// Implementation of the public API (coordinator.proto) for authorized callers (guarded_api.h): thin handlers
// that check, call, map and return. The called parts decide what a call does; errors.h defines errors on the
// wire.
//
// Latency: unary handlers return within one reconciler tick plus one write. Exceptions: SearchPlans returns
// before the client's deadline and runs one call at a time; ListSteps, which queries agents, within
// kStepsPatience (list_steps.cc). Streams (WatchJob, WatchEvents, TailLogs, TraceJob) hold a thread each;
// GuardedApi limits them and ListSteps (reader_streams.h).
//
// Thread-safe. Ownership: borrows everything in Parts.
#pragma once

#include <absl/status/statusor.h>
#include <absl/time/time.h>

#include <atomic>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"
#include "coordinator/access/caller.h"
#include "coordinator/admission/admission.h"
#include "coordinator/agents/log_relay.h"
#include "coordinator/agents/timeline_board.h"
#include "coordinator/agents/trace_relay.h"
#include "coordinator/api/reader_streams.h"
#include "coordinator/job/job_watch.h"
#include "coordinator/reconcile/reconciler.h"
#include "coordinator/store/state_store.h"
#include "proto/fsdpd/v1/coordinator.grpc.pb.h"

namespace fsdpd {

class Meters;

class JobService final : public v1::Coordinator::Service {
 public:
  struct Parts {
    const Admission* admission;
    StateStore* store;
    JobBoard* board;
    Reconciler* reconciler;
    NodeRegistry* nodes;
    LogRelay* logs;
    TraceRelay* traces;
    TimelineBoard* timelines;
    Clock* clock;
    Meters* meters = nullptr;  // Null: no metrics.
    std::function<std::string(absl::string_view job_name)> new_id = NewJobId;
  };
  explicit JobService(Parts parts) : parts_(parts) {}

  // Ends all streams with UNAVAILABLE. Idempotent.
  void Close() { closing_ = true; }

  // SubmitJob and ListJobs, whose results depend on the caller.
  absl::Status Submit(const Caller& caller, const v1::SubmitJobRequest& request,
                      v1::SubmitJobResponse* response);
  absl::Status List(const Caller& caller, const v1::ListJobsRequest& request, v1::ListJobsResponse* response);
  // Submitter of a job: nullopt if the job does not exist; "" if it has no submitter or cannot be read now.
  std::optional<std::string> SubmitterOf(const std::string& id);

  grpc::Status ValidateJob(grpc::ServerContext*, const v1::ValidateJobRequest*,
                           v1::ValidateJobResponse*) override;
  grpc::Status PlanJob(grpc::ServerContext*, const v1::PlanJobRequest*, v1::PlanJobResponse*) override;
  grpc::Status SearchPlans(grpc::ServerContext*, const v1::SearchPlansRequest*,
                           v1::SearchPlansResponse*) override;
  grpc::Status GetJob(grpc::ServerContext*, const v1::GetJobRequest*, v1::GetJobResponse*) override;
  grpc::Status WatchJob(grpc::ServerContext*, const v1::WatchJobRequest*,
                        grpc::ServerWriter<v1::WatchJobResponse>*) override;
  grpc::Status CancelJob(grpc::ServerContext*, const v1::CancelJobRequest*, v1::CancelJobResponse*) override;
  grpc::Status PauseJob(grpc::ServerContext*, const v1::PauseJobRequest*, v1::PauseJobResponse*) override;
  grpc::Status ResumeJob(grpc::ServerContext*, const v1::ResumeJobRequest*, v1::ResumeJobResponse*) override;
  grpc::Status RetryJob(grpc::ServerContext*, const v1::RetryJobRequest*, v1::RetryJobResponse*) override;
  grpc::Status DeleteJob(grpc::ServerContext*, const v1::DeleteJobRequest*, v1::DeleteJobResponse*) override;
  grpc::Status TailLogs(grpc::ServerContext*, const v1::TailLogsRequest*,
                        grpc::ServerWriter<v1::TailLogsResponse>*) override;
  grpc::Status TraceJob(grpc::ServerContext*, const v1::TraceJobRequest*,
                        grpc::ServerWriter<v1::TraceJobResponse>*) override;
  grpc::Status ListSteps(grpc::ServerContext*, const v1::ListStepsRequest*, v1::ListStepsResponse*) override;
  grpc::Status GetStepTimeline(grpc::ServerContext*, const v1::GetStepTimelineRequest*,
                               v1::GetStepTimelineResponse*) override;
  grpc::Status ListNodes(grpc::ServerContext*, const v1::ListNodesRequest*, v1::ListNodesResponse*) override;
  grpc::Status CordonNode(grpc::ServerContext*, const v1::CordonNodeRequest*,
                          v1::CordonNodeResponse*) override;
  grpc::Status UncordonNode(grpc::ServerContext*, const v1::UncordonNodeRequest*,
                            v1::UncordonNodeResponse*) override;
  grpc::Status ListEvents(grpc::ServerContext*, const v1::ListEventsRequest*,
                          v1::ListEventsResponse*) override;
  grpc::Status WatchEvents(grpc::ServerContext*, const v1::WatchEventsRequest*,
                           grpc::ServerWriter<v1::WatchEventsResponse>*) override;
  grpc::Status DrainNode(grpc::ServerContext*, const v1::DrainNodeRequest*, v1::DrainNodeResponse*) override;
  grpc::Status DeleteNode(grpc::ServerContext*, const v1::DeleteNodeRequest*,
                          v1::DeleteNodeResponse*) override;
  grpc::Status PreflightNode(grpc::ServerContext*, const v1::PreflightNodeRequest*,
                             v1::PreflightNodeResponse*) override;
  grpc::Status GetVersion(grpc::ServerContext*, const v1::GetVersionRequest*,
                          v1::GetVersionResponse*) override;

 private:
  using LogWriter = grpc::ServerWriter<v1::TailLogsResponse>;
  using TraceWriter = grpc::ServerWriter<v1::TraceJobResponse>;

  absl::Status Search(grpc::ServerContext* context, const v1::SearchPlansRequest& request,
                      v1::PlanSearch* search);

  // Submit() without metrics. `repeated`: the response is an existing job.
  absl::Status Admit(const Caller& caller, const v1::SubmitJobRequest& request, bool* repeated,
                     v1::SubmitJobResponse* response);
  absl::Status Refuse(const Violations& violations);
  // The violation of a spec whose checkpoint directory belongs to a live job; empty if none has it, or if the
  // same request made that job in the meantime: the insert then finds it.
  absl::StatusOr<Violations> DirectoryViolations(const v1::JobSpec& spec, const std::string& request_id = "");
  // Response to a request whose id already made `earlier`.
  static absl::Status RespondWithEarlier(const v1::SubmitJobRequest& request, v1::Job earlier,
                                         v1::SubmitJobResponse* response);
  // The dependencies that a request names.
  absl::StatusOr<std::vector<v1::Job::After>> AfterOf(const v1::SubmitJobRequest& request);
  absl::Status Watch(grpc::ServerContext* context, const v1::WatchJobRequest& request,
                     grpc::ServerWriter<v1::WatchJobResponse>* writer);
  absl::StatusOr<v1::Job> Find(const std::string& id);
  std::vector<v1::Node> Nodes() const;  // By name.
  v1::Node NodeNamed(const std::string& name) const;

  absl::Status Tail(grpc::ServerContext* context, const v1::TailLogsRequest& request, LogWriter* writer);
  // Streams the lines of one attempt; with follow, until the attempt is over.
  absl::Status TailAttempt(grpc::ServerContext* context, const v1::TailLogsRequest& request,
                           const v1::Job& job, int32_t attempt, LogWriter* writer);
  // Returns the job once it has an attempt after `attempt`, or has ended.
  absl::StatusOr<v1::Job> AwaitAttempt(grpc::ServerContext* context, const std::string& id, int32_t attempt);

  absl::Status Trace(grpc::ServerContext* context, const v1::TraceJobRequest& request, TraceWriter* writer);
  // Sends trace orders to the ranks and waits for their replies. FAILED_PRECONDITION: the attempt ended
  // first.
  absl::Status AwaitTraces(grpc::ServerContext* context, const v1::Job& job,
                           const v1::TraceJobResponse::Order& order, bool memory_snapshot,
                           TraceWriter* writer);
  absl::Status SendTraces(grpc::ServerContext* context, const v1::Job& job, const LogRequest& read,
                          TraceWriter* writer);

  absl::Status ReadSteps(grpc::ServerContext* context, const v1::ListStepsRequest& request,
                         v1::ListStepsResponse* response);

  absl::Status ReadTimeline(const std::string& id, v1::GetStepTimelineResponse* response);

  absl::Status CheckStream(grpc::ServerContext* context) const;

  const Parts parts_;
  std::atomic<bool> closing_{false};
  std::atomic<bool> searching_{false};
};

}  // namespace fsdpd
