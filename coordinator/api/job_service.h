// Submits and reads of jobs: SubmitJob, ValidateJob, GetJob, ListJobs, WatchJob, and GetVersion.
//
// Thread-safe. Borrows everything in Parts. Except for WatchJob, a call takes at most a tick of the
// reconciler and a write.
#pragma once

#include <absl/status/statusor.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "coordinator/admission/admission.h"
#include "coordinator/api/api_call.h"
#include "coordinator/job/job_watch.h"
#include "coordinator/metrics/meters.h"
#include "coordinator/reconcile/reconciler.h"
#include "coordinator/store/state_store.h"

namespace fsdpd {

class JobService {
 public:
  struct Parts {
    const Admission* admission;
    StateStore* store;
    JobBoard* board;
    Reconciler* reconciler;
    NodeRegistry* nodes;
    Clock* clock;
    Meters* meters;  // Null: no metrics.
    std::function<std::string(absl::string_view job_name)> new_id;
  };
  explicit JobService(Parts parts) : parts_(std::move(parts)) {}

  absl::Status SubmitJob(const ApiCall& call, const v1::SubmitJobRequest& request,
                         v1::SubmitJobResponse* response);
  absl::Status ValidateJob(const ApiCall& call, const v1::ValidateJobRequest& request,
                           v1::ValidateJobResponse* response);
  absl::Status GetJob(const ApiCall& call, const v1::GetJobRequest& request, v1::GetJobResponse* response);
  absl::Status ListJobs(const ApiCall& call, const v1::ListJobsRequest& request,
                        v1::ListJobsResponse* response);
  absl::Status WatchJob(const ApiCall& call, const v1::WatchJobRequest& request,
                        grpc::ServerWriter<v1::WatchJobResponse>* writer);
  absl::Status GetVersion(const ApiCall& call, const v1::GetVersionRequest& request,
                          v1::GetVersionResponse* response);

  // The live or stored job. JOB_NOT_FOUND, or INVALID_ARGUMENT for an invalid id.
  absl::StatusOr<v1::Job> Find(const std::string& id);
  // Submitter of a job: nullopt if the job does not exist; "" if it has no submitter or cannot be read now.
  std::optional<std::string> SubmitterOf(const std::string& id);

 private:
  // SubmitJob() without metrics. `repeated`: the response is an existing job.
  absl::Status Admit(const Caller& caller, const v1::SubmitJobRequest& request, bool* repeated,
                     v1::SubmitJobResponse* response);
  absl::Status Refuse(const Violations& violations);
  // The violation of a spec whose checkpoint directory belongs to a live job; empty if none has it, or if the
  // same request made that job in the meantime: the insert then finds it.
  absl::StatusOr<Violations> DirectoryViolations(const v1::JobSpec& spec, const std::string& request_id = "");
  // The dependencies that a request names.
  absl::StatusOr<std::vector<v1::Job::After>> AfterOf(const v1::SubmitJobRequest& request);

  const Parts parts_;
};

}  // namespace fsdpd
