// Call path of SubmitJob: Admission returns all violations or a plan, the store persists the job, the
// reconciler is notified, and the client gets its response. Nothing is launched here; the reconciler does
// that when it places the job.
#include "coordinator/api/job_service.h"

#include <absl/strings/ascii.h>
#include <absl/strings/str_cat.h>

#include <algorithm>

#include "base/check.h"
#include "base/ids.h"
#include "base/limits.h"
#include "base/version.h"
#include "coordinator/access/reader_streams.h"
#include "coordinator/admission/job_size.h"
#include "coordinator/api/job_page.h"
#include "coordinator/api/job_query.h"
#include "coordinator/api/page_token.h"
#include "coordinator/attempt/slot_count.h"
#include "coordinator/job/directory_owner.h"
#include "coordinator/job/job_ledger.h"
#include "coordinator/job/job_machine.h"
#include "coordinator/job/job_plan.h"
#include "coordinator/metrics/meters.h"
#include "coordinator/request/errors.h"
#include "coordinator/request/job_etag.h"
#include "coordinator/schedule/placer.h"

namespace fsdpd {
namespace {

constexpr int kMaxAfter = 64;
// A job id ends in six random characters: among ten thousand jobs of one name a collision is rare.
constexpr int kInsertTries = 3;

absl::Status CheckRequestId(const std::string& id) {
  if (std::any_of(id.begin(), id.end(), [](unsigned char c) { return absl::ascii_iscntrl(c); })) {
    return BadField("request_id", "contains control characters");
  }
  if (id.size() <= kMaxRequestId) return absl::OkStatus();
  return BadField("request_id", absl::StrCat("is too long (got ", id.size(), " characters, want at most ",
                                             kMaxRequestId, ")"));
}

// Whether `request`, which has the request id of `job`, is the same request apart from the spec, which the
// store compares.
bool IsSameRequest(const v1::Job& job, const v1::SubmitJobRequest& request) {
  const absl::StatusOr<Labels> labels = CheckedLabels(request.labels());
  const auto same = [](const v1::Label& a, const v1::Label& b) {
    return a.key() == b.key() && a.value() == b.value();
  };
  return request.preemptible() == job.preemptible() && labels.ok() &&
         std::equal(labels->begin(), labels->end(), job.labels().begin(), job.labels().end(), same) &&
         (request.project().empty() || request.project() == job.project()) &&
         std::equal(request.after().begin(), request.after().end(), job.after().begin(), job.after().end(),
                    [](const std::string& id, const v1::Job::After& after) { return id == after.job(); });
}

// The project whose quota counts the job.
absl::StatusOr<std::string> ProjectOf(const Caller& caller, const v1::SubmitJobRequest& request) {
  const std::string& asked = request.project();
  if (asked.empty() || asked == caller.project) return caller.project;
  if (const absl::Status name = CheckProjectName(asked); !name.ok())
    return BadField("project", name.message());
  if (caller.project.empty() || caller.role >= PrincipalRole::kOperator) return asked;
  return Refusal(absl::StatusCode::kPermissionDenied, "PROJECT_NOT_ALLOWED",
                 absl::StrCat("project: only operators may submit to another project (", caller.name,
                              " is in project ", caller.project, ")"),
                 {{"project", caller.project}});
}

v1::Job NewJob(const std::string& id, const Caller& caller, const std::string& project,
               const v1::SubmitJobRequest& request, const Examined& examined, absl::Time now) {
  constexpr char kReason[] = "admitted; waits to be placed";
  v1::Job job;
  job.set_id(id);
  *job.mutable_spec() = request.spec();
  job.set_state(v1::JOB_STATE_QUEUED);
  job.set_reason(kReason);
  job.set_revision(1);
  job.set_create_unix_nanos(absl::ToUnixNanos(now));
  KeepPlan(examined.plan, examined.open, &job);
  job.set_request_id(request.request_id());
  job.set_submitter(caller.name);
  job.set_project(project);
  job.set_preemptible(request.preemptible());
  AddEvent(v1::EVENT_KIND_SUBMITTED, kReason, now, &job);
  return job;
}

// Response to a request whose id already made `earlier`.
absl::Status RespondWithEarlier(const v1::SubmitJobRequest& request, v1::Job earlier,
                                v1::SubmitJobResponse* response) {
  if (!IsSameRequest(earlier, request)) {
    return absl::AlreadyExistsError(absl::StrCat("request id '", request.request_id(), "' was used for job ",
                                                 earlier.id(), " with other options; use a new request id"));
  }
  *response->mutable_job() = std::move(earlier);
  AddEtag(response->mutable_job());
  return absl::OkStatus();
}

// A warning for a job that the nodes could not run even if they were idle. It is still queued, because nodes
// may be added. Without any node there is nothing to compare with.
Violations WarnIfNothingFits(const v1::Job& job, const std::vector<NodeView>& nodes, const Cordons& cordons) {
  std::vector<NodeSlots> idle = IdleSlots(nodes);
  cordons.MarkIn(&idle);
  const PlaceDecision decision = Place(RequestOf(job), idle);
  if (idle.empty() || decision.placed()) return {};
  Violation warning;
  warning.rule = "no_node_could_take_it";
  warning.level = ViolationLevel::kWarn;
  warning.field = "resources";
  warning.reason = absl::StrCat("do not fit on the connected nodes even if they are idle: ", decision.reason);
  warning.fix =
      "add nodes (the job waits for them, and does not block other jobs), or request fewer resources";
  return {warning};
}

}  // namespace

// --- Submit ------------------------------------------------------------------------------------------------

absl::Status JobService::SubmitJob(const ApiCall& call, const v1::SubmitJobRequest& request,
                                   v1::SubmitJobResponse* response) {
  bool repeated = false;
  const absl::Status status = Admit(call.caller, request, &repeated, response);
  Meters::Submit outcome = repeated ? Meters::Submit::kRepeated : Meters::Submit::kAccepted;
  if (!status.ok())
    outcome = absl::IsInvalidArgument(status) ? Meters::Submit::kRefused : Meters::Submit::kFailed;
  if (parts_.meters != nullptr) parts_.meters->Submitted(outcome);
  return status;
}

absl::Status JobService::Refuse(const Violations& violations) {
  for (const Violation& violation : violations) {
    if (violation.level == ViolationLevel::kError && parts_.meters != nullptr)
      parts_.meters->Refused(violation.rule);
  }
  return BadSpec(violations);
}

absl::Status JobService::Admit(const Caller& caller, const v1::SubmitJobRequest& request, bool* repeated,
                               v1::SubmitJobResponse* response) {
  FSDPD_RETURN_IF_ERROR(CheckSize(request.spec()));
  FSDPD_ASSIGN_OR_RETURN(const std::string project, ProjectOf(caller, request));
  FSDPD_RETURN_IF_ERROR(CheckRequestId(request.request_id()));
  const absl::StatusOr<Labels> labels = CheckedLabels(request.labels());
  if (!labels.ok()) return BadField("labels", labels.status().message());
  if (!request.request_id().empty()) {
    // Before admission: an accepted job stays accepted, whatever nodes offer now.
    FSDPD_ASSIGN_OR_RETURN(auto earlier, parts_.store->FindRequest(request.request_id(), request.spec()));
    *repeated = earlier.has_value();
    if (*repeated) return RespondWithEarlier(request, std::move(*earlier), response);
  }
  FSDPD_ASSIGN_OR_RETURN(const std::vector<v1::Job::After> after, AfterOf(request));
  const Examined examined = parts_.admission->Examine(request.spec());
  Violations violations = examined.plan.violations;
  FSDPD_ASSIGN_OR_RETURN(const Violations taken, DirectoryViolations(request.spec(), request.request_id()));
  violations.insert(violations.end(), taken.begin(), taken.end());
  if (HasErrors(violations)) return Refuse(violations);
  if (request.preemptible() && examined.plan.resolved.checkpoint().dir().empty()) {
    return BadField(
        "preemptible",
        "requires checkpoint.dir in the spec: without checkpoints, a preemption would lose all progress");
  }
  absl::StatusOr<Inserted> stored;
  absl::Time admitted;
  for (int tries = 0; tries < kInsertTries; ++tries) {
    const std::string id = parts_.new_id(request.spec().name());
    admitted = parts_.clock->Now();
    v1::Job job = NewJob(id, caller, project, request, examined, parts_.clock->Wall());
    job.mutable_after()->Assign(after.begin(), after.end());
    *job.mutable_labels() = *labels;
    stored = parts_.store->Insert(job);
    if (absl::IsOutOfRange(stored.status()))
      return Refuse({TooLarge(request.spec(), stored.status().message())});
    if (absl::IsFailedPrecondition(stored.status())) {  // Another request was faster; its job may have ended.
      FSDPD_ASSIGN_OR_RETURN(const Violations since,
                             DirectoryViolations(request.spec(), request.request_id()));
      if (!since.empty()) return Refuse(since);
    } else if (!absl::IsAlreadyExists(stored.status())) {
      break;
    }
  }
  FSDPD_RETURN_IF_ERROR(stored.status());
  Inserted inserted = *std::move(stored);
  *repeated = !inserted.created;
  if (*repeated) return RespondWithEarlier(request, std::move(inserted.job), response);
  parts_.board->Publish(inserted.job);  // Before the reconciler may publish its next revision.
  parts_.reconciler->Submitted(inserted.job, admitted);
  *response->mutable_job() = std::move(inserted.job);
  AddEtag(response->mutable_job());
  for (const Violation& violation : examined.plan.violations)
    *response->add_violations() = ToProto(violation);
  for (const Violation& warning :
       WarnIfNothingFits(response->job(), parts_.nodes->Snapshot(), parts_.reconciler->cordons())) {
    *response->add_violations() = ToProto(warning);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<v1::Job::After>> JobService::AfterOf(const v1::SubmitJobRequest& request) {
  if (request.after_size() > kMaxAfter)
    return BadField("after", absl::StrCat("has too many jobs (got ", request.after_size(), ", want at most ",
                                          kMaxAfter, ")"));
  std::vector<v1::Job::After> all;
  for (int i = 0; i < request.after_size(); ++i) {
    if (request.after(i).empty()) return BadField(absl::StrCat("after[", i, "]"), "is empty; pass a job id");
    absl::StatusOr<v1::Job> found = Find(request.after(i));
    if (!found.ok())
      return absl::IsInvalidArgument(found.status())
                 ? BadField(absl::StrCat("after[", i, "]"), "is not a job id")
                 : found.status();
    const v1::Job job = *std::move(found);
    if (IsEnded(job.state()) && job.state() != v1::JOB_STATE_SUCCEEDED) {
      return WrongState("JOB_ENDED", absl::StrCat("jobs/", job.id()),
                        absl::StrCat("after: job ", job.id(), " has ",
                                     job.state() == v1::JOB_STATE_CANCELLED ? "been cancelled" : "failed",
                                     ", so this job would never start; retry that job first (`fsdpctl retry ",
                                     job.id(), "`)"));
    }
    v1::Job::After after;
    after.set_job(job.id());
    after.set_succeeded(job.state() == v1::JOB_STATE_SUCCEEDED);
    all.push_back(std::move(after));
  }
  return all;
}

absl::Status JobService::ValidateJob(const ApiCall&, const v1::ValidateJobRequest& request,
                                     v1::ValidateJobResponse* response) {
  FSDPD_RETURN_IF_ERROR(CheckSize(request.spec()));
  FSDPD_ASSIGN_OR_RETURN(const Violations taken, DirectoryViolations(request.spec()));
  const Examined examined = parts_.admission->Examine(request.spec());
  Violations violations = examined.plan.violations;
  violations.insert(violations.end(), taken.begin(), taken.end());
  if (!HasErrors(violations)) {
    v1::Job job;
    *job.mutable_spec() = request.spec();
    KeepPlan(examined.plan, examined.open, &job);
    const Violations waits = WarnIfNothingFits(job, parts_.nodes->Snapshot(), parts_.reconciler->cordons());
    violations.insert(violations.end(), waits.begin(), waits.end());
  }
  for (const Violation& violation : violations) *response->add_violations() = ToProto(violation);
  return absl::OkStatus();
}

absl::StatusOr<Violations> JobService::DirectoryViolations(const v1::JobSpec& spec,
                                                           const std::string& request_id) {
  JobQuery query;
  query.limit = 1;
  query.states = LiveJobStates();
  query.directory = DirectoryOf(spec);
  if (query.directory.empty()) return Violations();
  FSDPD_ASSIGN_OR_RETURN(const JobPage holders, parts_.store->List(query));
  if (holders.jobs.empty()) return Violations();
  const v1::Job& holder = holders.jobs[0];
  if (!request_id.empty() && holder.request_id() == request_id) return Violations();
  return Violations{DirectoryIsTaken(holder)};
}

// --- Read --------------------------------------------------------------------------------------------------

absl::StatusOr<v1::Job> JobService::Find(const std::string& id) {
  FSDPD_RETURN_IF_ERROR(CheckJobId(id));
  if (std::optional<v1::Job> live = parts_.board->Get(id); live.has_value()) return *std::move(live);
  absl::StatusOr<v1::Job> stored = parts_.store->Get(id);
  if (absl::IsNotFound(stored.status())) return JobNotFound(id);
  return stored;
}

std::optional<std::string> JobService::SubmitterOf(const std::string& id) {
  const absl::StatusOr<v1::Job> job = Find(id);
  if (absl::IsNotFound(job.status()) || absl::IsInvalidArgument(job.status())) return std::nullopt;
  return job.ok() ? job->submitter() : "";
}

absl::Status JobService::GetJob(const ApiCall&, const v1::GetJobRequest& request,
                                v1::GetJobResponse* response) {
  FSDPD_ASSIGN_OR_RETURN(*response->mutable_job(), Find(request.id()));
  parts_.board->AddWaiting(response->mutable_job());
  AdvanceLedger(parts_.reconciler->ledger_date().Now(), response->mutable_job());
  AddEtag(response->mutable_job());
  return absl::OkStatus();
}

absl::Status JobService::ListJobs(const ApiCall& call, const v1::ListJobsRequest& request,
                                  v1::ListJobsResponse* response) {
  FSDPD_ASSIGN_OR_RETURN(const JobQuery query, QueryOf(call.caller, request));
  // Read the board before the store: a job that ends in between is in both, and a job that starts is in the
  // next list.
  std::vector<std::shared_ptr<const v1::Job>> live = parts_.board->Unsettled();
  FSDPD_ASSIGN_OR_RETURN(JobPage stored, parts_.store->List(query));
  for (const v1::Job& job : stored.jobs) {
    if (auto shown = parts_.board->Find(job.id()); shown != nullptr) live.push_back(std::move(shown));
  }
  ShownPage page = AsShown(query, std::move(stored), live);
  if (page.more) response->set_next_page_token(EncodePageToken(page.end, ListMark(request.order_by())));
  for (v1::Job& job : page.jobs) {
    parts_.board->AddWaiting(&job);
    AddEtag(&job);
    *response->add_jobs() = std::move(job);
  }
  return absl::OkStatus();
}

absl::Status JobService::GetVersion(const ApiCall&, const v1::GetVersionRequest&,
                                    v1::GetVersionResponse* response) {
  response->set_version(kVersion);
  return absl::OkStatus();
}

// --- Watch -------------------------------------------------------------------------------------------------

absl::Status JobService::WatchJob(const ApiCall& call, const v1::WatchJobRequest& request,
                                  grpc::ServerWriter<v1::WatchJobResponse>* writer) {
  FSDPD_RETURN_IF_ERROR(CheckJobId(request.id()));
  v1::WatchJobResponse update;
  const std::shared_ptr<JobWatch> watch = parts_.board->Watch(request.id(), request.after_revision());
  if (watch == nullptr) {
    FSDPD_ASSIGN_OR_RETURN(*update.mutable_job(), Find(request.id()));
    AddEtag(update.mutable_job());
    if (update.job().revision() != request.after_revision()) writer->Write(update);
    return absl::OkStatus();
  }
  for (;;) {
    const JobWatch::Got got = watch->Next(kStreamPoll, &update);
    if (got == JobWatch::Got::kEnd) {
      FSDPD_ASSIGN_OR_RETURN(const v1::Job job, Find(request.id()));
      return IsEnded(job.state()) ? absl::OkStatus() : call.CheckOpen();
    }
    FSDPD_RETURN_IF_ERROR(call.CheckOpen());
    if (update.has_job()) AddEtag(update.mutable_job());
    if (got == JobWatch::Got::kUpdate && !writer->Write(update))
      return absl::CancelledError("the client disconnected");
  }
}

}  // namespace fsdpd
