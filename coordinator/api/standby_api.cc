#include "coordinator/api/standby_api.h"

#include <absl/strings/str_cat.h>

#include <utility>

#include "base/check.h"
#include "base/version.h"
#include "coordinator/api/event_reads.h"
#include "coordinator/api/job_query.h"
#include "coordinator/api/page_token.h"
#include "coordinator/job/job_ledger.h"
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

// Any authenticated caller is redirected, and a call without effect is not audited.
grpc::Status StandbyApi::Redirect(const ApiMethod& method, grpc::ServerContext* context,
                                  const google::protobuf::Message& request, const void*) {
  const ApiMethod redirected = {
      method.name,       method.streams, PrincipalRole::kViewer, PrincipalRole::kViewer,
      /*changes=*/false, std::nullopt};
  return gate_.Pass(redirected, *context, request, nullptr,
                    [this](const Caller&) { return NotLeader(leader_()); });
}

absl::Status StandbyApi::Read(const ApiCall& call, const v1::GetJobRequest& request,
                              v1::GetJobResponse* response) {
  FSDPD_RETURN_IF_ERROR(CheckJobId(request.id()));
  FSDPD_RETURN_IF_ERROR(Readable());
  int64_t revision = 0;
  absl::StatusOr<v1::Job> job = jobs_->Get(request.id(), &revision);
  if (absl::IsNotFound(job.status())) return JobNotFound(request.id());
  FSDPD_RETURN_IF_ERROR(job.status());
  FSDPD_RETURN_IF_ERROR(events_.AddTo({&*job}));
  AdvanceLedger(clock_->Wall(), &*job);
  AddEtag(&*job);
  *response->mutable_job() = *std::move(job);
  AddRevision(revision, call.context);
  return absl::OkStatus();
}

absl::Status StandbyApi::Read(const ApiCall& call, const v1::ListJobsRequest& request,
                              v1::ListJobsResponse* response) {
  FSDPD_ASSIGN_OR_RETURN(const JobQuery query, QueryOf(call.caller, request));
  FSDPD_RETURN_IF_ERROR(Readable());
  int64_t revision = 0;
  FSDPD_ASSIGN_OR_RETURN(const EtcdIndex index, jobs_->Load(&revision));
  FSDPD_ASSIGN_OR_RETURN(JobPage page, jobs_->Read(index.IdsFor(query), query, revision));
  if (page.more) response->set_next_page_token(EncodePageToken(page.end, ListMark(request.order_by())));
  std::vector<v1::Job*> jobs;
  for (v1::Job& job : page.jobs) *jobs.emplace_back(response->add_jobs()) = std::move(job);
  FSDPD_RETURN_IF_ERROR(events_.AddTo(jobs));
  for (v1::Job* job : jobs) AddEtag(job);
  AddRevision(revision, call.context);
  return absl::OkStatus();
}

absl::StatusOr<EventPage> StandbyApi::StoredEvents(const EventQuery& query) {
  FSDPD_RETURN_IF_ERROR(Readable());
  absl::StatusOr<EventPage> page;
  FSDPD_RETURN_IF_ERROR(events_.Look([&](const EventLog& log) { page = ReadLog(log, query); }));
  return page;
}

absl::Status StandbyApi::Read(const ApiCall&, const v1::ListEventsRequest& request,
                              v1::ListEventsResponse* response) {
  return AnswerEvents(
      request, [this](const EventQuery& query) { return StoredEvents(query); }, response);
}

absl::Status StandbyApi::Read(const ApiCall&, const v1::GetVersionRequest&,
                              v1::GetVersionResponse* response) {
  response->set_version(kVersion);
  return absl::OkStatus();
}

grpc::Status StandbyAgents::Attach(grpc::ServerContext* context,
                                   grpc::ServerReaderWriter<v1::CoordinatorMessage, v1::AgentMessage>*) {
  const absl::Status shown = authorizer_->RequireCertificate(*context);
  return ToGrpc(shown.ok() ? NotLeader(leader_()) : shown);
}

}  // namespace fsdpd
