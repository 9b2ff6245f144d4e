#include <absl/strings/str_cat.h>

#include "base/check.h"
#include "base/ids.h"
#include "client/commands.h"
#include "client/message_output.h"
#include "client/outcome.h"
#include "client/plan_text.h"
#include "client/session.h"
#include "client/spec_file.h"
#include "fsdp/plan/plan.h"
#include "fsdp/plan/rules.h"

namespace fsdpd {
namespace {

SpecFaults Located(const google::protobuf::RepeatedPtrField<v1::Fault>& faults, const SpecText& spec) {
  SpecFaults located;
  for (const v1::Fault& fault : faults) located.push_back(Locate(ToViolation(fault), spec.places));
  return located;
}

absl::StatusOr<v1::ValidateJobResponse> Validate(Session* session, const SpecText& spec) {
  v1::ValidateJobRequest request;
  *request.mutable_spec() = spec.spec;
  return session->client().ValidateJob(request);
}

// A refused spec is told with places. The refusal's details have field and text only, so the coordinator is
// asked once more for the faults themselves; where that fails, the details have to do.
int FailSpec(Session* session, const absl::Status& status, const SpecText& spec) {
  if (!absl::IsInvalidArgument(status) || FieldViolationsOf(status).empty()) return session->Fail(status);
  if (ReasonOf(status) != "BAD_SPEC") return session->Fail(status);
  const absl::StatusOr<v1::ValidateJobResponse> answer = Validate(session, spec);
  SpecFaults faults;
  if (answer.ok()) faults = Located(answer->faults(), spec);
  if (ReportFaults(faults, &session->console()) == kExitSpecRefused) return kExitSpecRefused;
  for (const Violation& violation : FieldViolationsOf(status)) {
    session->console().err << Render(Locate(violation, spec.places)) << "\n";
  }
  return kExitSpecRefused;
}

int RunSubmit(Session* session, const SpecText& spec) {
  if (const absl::Status status = session->client().Connect(); !status.ok()) return session->Fail(status);
  const CommandLine& line = session->line();
  Console& console = session->console();
  v1::SubmitJobRequest request;
  *request.mutable_spec() = spec.spec;
  request.set_request_id(line.request_id.empty() ? NewToken() : line.request_id);
  const absl::StatusOr<v1::SubmitJobResponse> response = session->client().SubmitJob(request);
  if (!response.ok()) return FailSpec(session, response.status(), spec);
  ReportFaults(Located(response->faults(), spec), &console);
  const std::string& id = response->job().id();
  if (line.follow) return session->Follow(id, /*submitted_now=*/true);
  if (line.output == "table") {
    console.out << id << "\n";
    console.err << "submitted; `fsdpctl watch " << id << "` follows it\n";
  } else {
    console.out << Rendered(response->job(), line.output);
  }
  return kExitOk;
}

int RunValidate(Session* session, const SpecText& spec) {
  const CommandLine& line = session->line();
  v1::ValidateJobResponse response;
  if (line.offline) {
    for (const Violation& violation : CheckJob(spec.spec)) *response.add_faults() = ToProto(violation);
  } else {
    if (const absl::Status status = session->client().Connect(); !status.ok()) return session->Fail(status);
    absl::StatusOr<v1::ValidateJobResponse> answer = Validate(session, spec);
    if (!answer.ok()) return session->Fail(answer.status());
    response = *std::move(answer);
  }
  const int code = ReportFaults(Located(response.faults(), spec), &session->console());
  if (line.output != "table") {
    session->console().out << Rendered(response, line.output);
  } else if (code == kExitOk) {
    session->console().err << line.file << ": valid\n";
  }
  return code;
}

int RunPlan(Session* session, const SpecText& spec) {
  const CommandLine& line = session->line();
  v1::Plan plan;
  if (line.offline) {
    plan = ToProto(MakePlan(spec.spec, /*budget_bytes_per_rank=*/0));
  } else {
    if (const absl::Status status = session->client().Connect(); !status.ok()) return session->Fail(status);
    v1::PlanJobRequest request;
    *request.mutable_spec() = spec.spec;
    absl::StatusOr<v1::PlanJobResponse> answer = session->client().PlanJob(request);
    if (!answer.ok()) return FailSpec(session, answer.status(), spec);
    plan = std::move(*answer->mutable_plan());
  }
  const int code = ReportFaults(Located(plan.faults(), spec), &session->console());
  if (code != kExitOk) return code;
  session->console().out << (line.output == "table" ? PlanText(plan, line.program)
                                                    : Rendered(plan, line.output));
  return kExitOk;
}

}  // namespace

int RunSpecCommand(const CommandLine& line, Console* console) {
  const absl::StatusOr<SpecText> spec = LoadSpec(line.file, line.sets, console->in);
  if (!spec.ok()) {
    console->err << "fsdpctl: " << spec.status().message() << "\n";
    return kExitUsage;
  }
  if (const int code = ReportFaults(spec->faults, console); code != kExitOk) return code;
  Session session(line, console);
  if (line.command == "submit") return RunSubmit(&session, *spec);
  if (line.command == "validate") return RunValidate(&session, *spec);
  FSDPD_CHECK(line.command == "plan");
  return RunPlan(&session, *spec);
}

int RunFsdpctl(const std::vector<std::string>& arguments, Console* console) {
  CommandLine line;
  if (const std::optional<int> code = ParseCommandLine(arguments, &line, console)) return *code;
  if (line.command == "migrate") return RunMigrateCommand(line, console);
  return line.file.empty() ? RunJobCommand(line, console) : RunSpecCommand(line, console);
}

}  // namespace fsdpd
