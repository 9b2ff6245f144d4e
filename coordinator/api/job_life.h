// Changes of a job by users: cancel, pause, resume, retry and delete. Requests are validated here and
// executed by the reconciler.
//
// Thread-safe. Borrows the reconciler.
#pragma once

#include "coordinator/api/api_call.h"
#include "coordinator/reconcile/reconciler.h"

namespace fsdpd {

class JobChanges {
 public:
  explicit JobChanges(Reconciler* reconciler) : reconciler_(reconciler) {}

  absl::Status CancelJob(const ApiCall& call, const v1::CancelJobRequest& request,
                         v1::CancelJobResponse* response);
  absl::Status PauseJob(const ApiCall& call, const v1::PauseJobRequest& request,
                        v1::PauseJobResponse* response);
  absl::Status ResumeJob(const ApiCall& call, const v1::ResumeJobRequest& request,
                         v1::ResumeJobResponse* response);
  absl::Status RetryJob(const ApiCall& call, const v1::RetryJobRequest& request,
                        v1::RetryJobResponse* response);
  absl::Status DeleteJob(const ApiCall& call, const v1::DeleteJobRequest& request,
                         v1::DeleteJobResponse* response);

 private:
  Reconciler* const reconciler_;
};

}  // namespace fsdpd
