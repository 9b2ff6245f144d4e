// JobService: cancel, pause, resume, retry and delete. Requests are validated here and executed by the
// reconciler.
#include <absl/strings/str_cat.h>

#include "base/api/call_limits.h"
#include "coordinator/api/job_service.h"
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
grpc::Status Answer(const std::string& id, absl::StatusOr<v1::Job> job, Response* response) {
  if (absl::IsNotFound(job.status())) return ToGrpc(JobNotFound(id));
  if (!job.ok()) return ToGrpc(job.status());
  *response->mutable_job() = *std::move(job);
  AddEtag(response->mutable_job());
  return grpc::Status::OK;
}

}  // namespace

grpc::Status JobService::CancelJob(grpc::ServerContext*, const v1::CancelJobRequest* request,
                                   v1::CancelJobResponse* response) {
  const int64_t grace = request->has_grace_seconds() ? request->grace_seconds() : kDefaultGraceSeconds;
  absl::Status checked = CheckJobId(request->id());
  checked.Update(CheckGrace(grace));
  checked.Update(CheckReason(request->reason()));
  if (!checked.ok()) return ToGrpc(checked);
  return Answer(request->id(),
                parts_.reconciler->Cancel(request->id(), request->reason(), grace * 1000, request->etag()),
                response);
}

grpc::Status JobService::PauseJob(grpc::ServerContext*, const v1::PauseJobRequest* request,
                                  v1::PauseJobResponse* response) {
  const int64_t grace = request->has_grace_seconds() ? request->grace_seconds() : kDefaultPauseGraceSeconds;
  absl::Status checked = CheckJobId(request->id());
  checked.Update(CheckGrace(grace));
  checked.Update(CheckReason(request->reason()));
  if (!checked.ok()) return ToGrpc(checked);
  return Answer(request->id(),
                parts_.reconciler->Pause(request->id(), request->reason(), grace * 1000, request->etag()),
                response);
}

grpc::Status JobService::ResumeJob(grpc::ServerContext*, const v1::ResumeJobRequest* request,
                                   v1::ResumeJobResponse* response) {
  absl::Status checked = CheckJobId(request->id());
  checked.Update(CheckReason(request->reason()));
  if (!checked.ok()) return ToGrpc(checked);
  return Answer(request->id(), parts_.reconciler->Resume(request->id(), request->reason(), request->etag()),
                response);
}

grpc::Status JobService::RetryJob(grpc::ServerContext*, const v1::RetryJobRequest* request,
                                  v1::RetryJobResponse* response) {
  absl::Status checked = CheckJobId(request->id());
  checked.Update(CheckReason(request->reason()));
  if (!checked.ok()) return ToGrpc(checked);
  return Answer(request->id(), parts_.reconciler->Retry(request->id(), request->reason(), request->etag()),
                response);
}

grpc::Status JobService::DeleteJob(grpc::ServerContext*, const v1::DeleteJobRequest* request,
                                   v1::DeleteJobResponse* response) {
  if (const absl::Status checked = CheckJobId(request->id()); !checked.ok()) return ToGrpc(checked);
  std::vector<std::string> unconfirmed;
  absl::StatusOr<v1::Job> job = parts_.reconciler->Delete(request->id(), request->etag(), &unconfirmed);
  response->mutable_unconfirmed_nodes()->Assign(unconfirmed.begin(), unconfirmed.end());
  return Answer(request->id(), std::move(job), response);
}

}  // namespace fsdpd
