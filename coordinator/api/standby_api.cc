#include "coordinator/api/standby_api.h"

#include <absl/strings/str_cat.h>

#include <utility>

#include "base/check.h"
#include "base/version.h"
#include "coordinator/access/peer.h"
#include "coordinator/api/event_reads.h"
#include "coordinator/api/job_query.h"
#include "coordinator/api/page_token.h"
#include "coordinator/job/job_ledger.h"
#include "coordinator/metrics/call_meter.h"
#include "coordinator/request/errors.h"
#include "coordinator/request/job_etag.h"

namespace fsdpd {
namespace {

void AddRevision(int64_t revision, grpc::ServerContext* context) {
  context->AddTrailingMetadata(kRevisionMetadata, absl::StrCat(revision));
}

}  // namespace

absl::Status NotLeader(const LeaderSeen& leader) {
  if (!leader.address.empty()) {
    return Refusal(absl::StatusCode::kUnavailable, "NOT_LEADER",
                   absl::StrCat("this coordinator is a standby; the leader is ", leader.address),
                   {{"leader", leader.address}});
  }
  const std::string none =
      leader.why_no_leader.empty() ? "; retry" : absl::StrCat(": ", leader.why_no_leader);
  return Refusal(absl::StatusCode::kUnavailable, "NOT_LEADER",
                 absl::StrCat("this coordinator is a standby, and there is no leader", none));
}

absl::Status StandbyApi::Readable() const {
  const LeaderSeen leader = leader_();
  return leader.etcd_silent ? NotLeader(leader) : absl::OkStatus();
}

grpc::Status StandbyApi::Refused(const char* method, const Context& context,
                                 const absl::StatusOr<Caller>& caller, const absl::Status& why) {
  const grpc::Status status = ToGrpc(why);
  if (audit_ == nullptr) return status;
  AuditRecord record;
  record.time = clock_->Wall();
  record.unauthenticated = !caller.ok();
  if (caller.ok() && !caller->name.empty()) {
    record.who = caller->name;
    record.role = NameOf(caller->role);
  }
  record.from = PeerOf(context);
  record.method = method;
  record.outcome = absl::StatusCodeToString(why.code());
  audit_->Write(std::move(record));
  return status;
}

grpc::Status StandbyApi::Redirect(const char* method, Context* context) {
  CallMeter meter(meters_, method);
  const absl::StatusOr<Caller> caller = authorizer_->Identify(*context);
  const grpc::Status status =
      caller.ok() ? ToGrpc(NotLeader(leader_())) : Refused(method, *context, caller, caller.status());
  meter.End(status);
  return status;
}

grpc::Status StandbyApi::Read(const char* method, Context* context,
                              const std::function<absl::Status(const Caller&)>& read) {
  CallMeter meter(meters_, method);
  const absl::StatusOr<Caller> caller = authorizer_->Identify(*context);
  const absl::Status permitted = caller.ok() ? authorizer_->Permit(*caller, method, "") : caller.status();
  const grpc::Status status =
      permitted.ok() ? ToGrpc(read(*caller)) : Refused(method, *context, caller, permitted);
  meter.End(status);
  return status;
}

grpc::Status StandbyApi::GetJob(Context* c, const v1::GetJobRequest* q, v1::GetJobResponse* a) {
  return Read("GetJob", c, [&](const Caller&) {
    FSDPD_RETURN_IF_ERROR(CheckJobId(q->id()));
    FSDPD_RETURN_IF_ERROR(Readable());
    int64_t revision = 0;
    absl::StatusOr<v1::Job> job = jobs_->Get(q->id(), &revision);
    if (absl::IsNotFound(job.status())) return JobNotFound(q->id());
    FSDPD_RETURN_IF_ERROR(job.status());
    FSDPD_RETURN_IF_ERROR(events_.AddTo({&*job}));
    AdvanceLedger(clock_->Wall(), &*job);
    AddEtag(&*job);
    *a->mutable_job() = *std::move(job);
    AddRevision(revision, c);
    return absl::OkStatus();
  });
}

grpc::Status StandbyApi::ListJobs(Context* c, const v1::ListJobsRequest* q, v1::ListJobsResponse* a) {
  return Read("ListJobs", c, [&](const Caller& caller) {
    FSDPD_ASSIGN_OR_RETURN(const JobQuery query, QueryOf(caller, *q));
    FSDPD_RETURN_IF_ERROR(Readable());
    int64_t revision = 0;
    FSDPD_ASSIGN_OR_RETURN(const EtcdIndex index, jobs_->Load(&revision));
    FSDPD_ASSIGN_OR_RETURN(JobPage page, jobs_->Read(index.IdsFor(query), query, revision));
    if (page.more) a->set_next_page_token(EncodePageToken(page.end, ListMark(q->filter(), q->order_by())));
    std::vector<v1::Job*> jobs;
    for (v1::Job& job : page.jobs) *jobs.emplace_back(a->add_jobs()) = std::move(job);
    FSDPD_RETURN_IF_ERROR(events_.AddTo(jobs));
    for (v1::Job* job : jobs) AddEtag(job);
    AddRevision(revision, c);
    return absl::OkStatus();
  });
}

absl::StatusOr<EventPage> StandbyApi::StoredEvents(const EventQuery& query) {
  FSDPD_RETURN_IF_ERROR(Readable());
  absl::StatusOr<EventPage> page;
  FSDPD_RETURN_IF_ERROR(events_.Look([&](const EventLog& log) { page = ReadLog(log, query); }));
  return page;
}

grpc::Status StandbyApi::ListEvents(Context* c, const v1::ListEventsRequest* q, v1::ListEventsResponse* a) {
  return Read("ListEvents", c, [&](const Caller&) {
    return AnswerEvents(
        *q, [this](const EventQuery& query) { return StoredEvents(query); }, a);
  });
}

grpc::Status StandbyApi::GetVersion(Context* c, const v1::GetVersionRequest*, v1::GetVersionResponse* a) {
  return Read("GetVersion", c, [&](const Caller&) {
    a->set_version(kVersion);
    return absl::OkStatus();
  });
}

grpc::Status StandbyApi::ListNodes(Context* c, const v1::ListNodesRequest*, v1::ListNodesResponse*) {
  return Redirect("ListNodes", c);
}
grpc::Status StandbyApi::SubmitJob(Context* c, const v1::SubmitJobRequest*, v1::SubmitJobResponse*) {
  return Redirect("SubmitJob", c);
}
grpc::Status StandbyApi::ValidateJob(Context* c, const v1::ValidateJobRequest*, v1::ValidateJobResponse*) {
  return Redirect("ValidateJob", c);
}
grpc::Status StandbyApi::PlanJob(Context* c, const v1::PlanJobRequest*, v1::PlanJobResponse*) {
  return Redirect("PlanJob", c);
}
grpc::Status StandbyApi::SearchPlans(Context* c, const v1::SearchPlansRequest*, v1::SearchPlansResponse*) {
  return Redirect("SearchPlans", c);
}
grpc::Status StandbyApi::WatchJob(Context* c, const v1::WatchJobRequest*,
                                  grpc::ServerWriter<v1::WatchJobResponse>*) {
  return Redirect("WatchJob", c);
}
grpc::Status StandbyApi::CancelJob(Context* c, const v1::CancelJobRequest*, v1::CancelJobResponse*) {
  return Redirect("CancelJob", c);
}
grpc::Status StandbyApi::PauseJob(Context* c, const v1::PauseJobRequest*, v1::PauseJobResponse*) {
  return Redirect("PauseJob", c);
}
grpc::Status StandbyApi::ResumeJob(Context* c, const v1::ResumeJobRequest*, v1::ResumeJobResponse*) {
  return Redirect("ResumeJob", c);
}
grpc::Status StandbyApi::RetryJob(Context* c, const v1::RetryJobRequest*, v1::RetryJobResponse*) {
  return Redirect("RetryJob", c);
}
grpc::Status StandbyApi::DeleteJob(Context* c, const v1::DeleteJobRequest*, v1::DeleteJobResponse*) {
  return Redirect("DeleteJob", c);
}
grpc::Status StandbyApi::TailLogs(Context* c, const v1::TailLogsRequest*,
                                  grpc::ServerWriter<v1::TailLogsResponse>*) {
  return Redirect("TailLogs", c);
}
grpc::Status StandbyApi::TraceJob(Context* c, const v1::TraceJobRequest*,
                                  grpc::ServerWriter<v1::TraceJobResponse>*) {
  return Redirect("TraceJob", c);
}
grpc::Status StandbyApi::ListSteps(Context* c, const v1::ListStepsRequest*, v1::ListStepsResponse*) {
  return Redirect("ListSteps", c);
}
grpc::Status StandbyApi::GetStepTimeline(Context* c, const v1::GetStepTimelineRequest*,
                                         v1::GetStepTimelineResponse*) {
  return Redirect("GetStepTimeline", c);
}
grpc::Status StandbyApi::CordonNode(Context* c, const v1::CordonNodeRequest*, v1::CordonNodeResponse*) {
  return Redirect("CordonNode", c);
}
grpc::Status StandbyApi::UncordonNode(Context* c, const v1::UncordonNodeRequest*, v1::UncordonNodeResponse*) {
  return Redirect("UncordonNode", c);
}
grpc::Status StandbyApi::WatchEvents(Context* c, const v1::WatchEventsRequest*,
                                     grpc::ServerWriter<v1::WatchEventsResponse>*) {
  return Redirect("WatchEvents", c);
}
grpc::Status StandbyApi::DrainNode(Context* c, const v1::DrainNodeRequest*, v1::DrainNodeResponse*) {
  return Redirect("DrainNode", c);
}
grpc::Status StandbyApi::DeleteNode(Context* c, const v1::DeleteNodeRequest*, v1::DeleteNodeResponse*) {
  return Redirect("DeleteNode", c);
}
grpc::Status StandbyApi::PreflightNode(Context* c, const v1::PreflightNodeRequest*,
                                       v1::PreflightNodeResponse*) {
  return Redirect("PreflightNode", c);
}

grpc::Status StandbyAgents::Attach(grpc::ServerContext* context,
                                   grpc::ServerReaderWriter<v1::CoordinatorMessage, v1::AgentMessage>*) {
  const absl::Status shown = authorizer_->RequireCertificate(*context);
  return ToGrpc(shown.ok() ? NotLeader(leader_()) : shown);
}

}  // namespace fsdpd
