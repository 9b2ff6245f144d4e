#include "coordinator/api/job_life.h"

#include <absl/strings/str_cat.h>

#include "base/api/call_limits.h"
#include "base/check.h"
#include "coordinator/request/errors.h"
#include "coordinator/request/job_etag.h"

namespace fsdpd {
namespace {

constexpr int64_t kDefaultGraceSeconds = 10;
// Ranks exit as soon as they have saved; the limit is for ranks that hang or have a slow disk.
constexpr int64_t kDefaultPauseGraceSeconds = 600;

absl::Status CheckReason(const std::string& reason) {
  if (reason.size() <= kMaxReasonBytes) return absl::OkStatus();
  return BadField("reason", absl::StrCat("is too long (want at most ", kMaxReasonBytes, " characters)"));
}

absl::Status CheckGrace(int64_t seconds) {
  if (seconds >= 0 && seconds <= kMaxGraceSeconds) return absl::OkStatus();
  return BadField("grace_seconds",
                  absl::StrCat("is out of range (got ", seconds, ", want 0..", kMaxGraceSeconds, ")"));
}

template <typename Response>
absl::Status Answer(const std::string& id, absl::StatusOr<v1::Job> job, Response* response) {
  if (absl::IsNotFound(job.status())) return JobNotFound(id);
  FSDPD_RETURN_IF_ERROR(job.status());
  *response->mutable_job() = *std::move(job);
  AddEtag(response->mutable_job());
  return absl::OkStatus();
}

}  // namespace

absl::Status JobChanges::CancelJob(const ApiCall&, const v1::CancelJobRequest& request,
                                   v1::CancelJobResponse* response) {
  const int64_t grace = request.has_grace_seconds() ? request.grace_seconds() : kDefaultGraceSeconds;
  FSDPD_RETURN_IF_ERROR(CheckJobId(request.id()));
  FSDPD_RETURN_IF_ERROR(CheckGrace(grace));
  FSDPD_RETURN_IF_ERROR(CheckReason(request.reason()));
  return Answer(request.id(),
                reconciler_->Cancel(request.id(), request.reason(), grace * 1000, request.etag()), response);
}

absl::Status JobChanges::PauseJob(const ApiCall&, const v1::PauseJobRequest& request,
                                  v1::PauseJobResponse* response) {
  const int64_t grace = request.has_grace_seconds() ? request.grace_seconds() : kDefaultPauseGraceSeconds;
  FSDPD_RETURN_IF_ERROR(CheckJobId(request.id()));
  FSDPD_RETURN_IF_ERROR(CheckGrace(grace));
  FSDPD_RETURN_IF_ERROR(CheckReason(request.reason()));
  return Answer(request.id(),
                reconciler_->Pause(request.id(), request.reason(), grace * 1000, request.etag()), response);
}

absl::Status JobChanges::ResumeJob(const ApiCall&, const v1::ResumeJobRequest& request,
                                   v1::ResumeJobResponse* response) {
  FSDPD_RETURN_IF_ERROR(CheckJobId(request.id()));
  FSDPD_RETURN_IF_ERROR(CheckReason(request.reason()));
  return Answer(request.id(), reconciler_->Resume(request.id(), request.reason(), request.etag()), response);
}

absl::Status JobChanges::RetryJob(const ApiCall&, const v1::RetryJobRequest& request,
                                  v1::RetryJobResponse* response) {
  FSDPD_RETURN_IF_ERROR(CheckJobId(request.id()));
  FSDPD_RETURN_IF_ERROR(CheckReason(request.reason()));
  return Answer(request.id(), reconciler_->Retry(request.id(), request.reason(), request.etag()), response);
}

absl::Status JobChanges::DeleteJob(const ApiCall&, const v1::DeleteJobRequest& request,
                                   v1::DeleteJobResponse* response) {
  FSDPD_RETURN_IF_ERROR(CheckJobId(request.id()));
  std::vector<std::string> unconfirmed;
  absl::StatusOr<v1::Job> job = reconciler_->Delete(request.id(), request.etag(), &unconfirmed);
  response->mutable_unconfirmed_nodes()->Assign(unconfirmed.begin(), unconfirmed.end());
  return Answer(request.id(), std::move(job), response);
}

}  // namespace fsdpd
