#include <absl/strings/str_cat.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <optional>
#include <utility>
#include <variant>

#include "base/check.h"
#include "base/ids.h"
#include "client/commands.h"
#include "client/message_output.h"
#include "client/outcome.h"
#include "client/plan_text.h"
#include "client/profile_file.h"
#include "client/session.h"
#include "client/spec_file.h"
#include "fsdp/plan/plan.h"
#include "fsdp/plan/prediction.h"
#include "fsdp/plan/rules.h"
#include "fsdp/plan/timeline.h"

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

bool WantsTimeline(const CommandLine& line) { return !line.trace.empty() || !line.picture.empty(); }

int Usage(Session* session, const absl::Status& status) {
  session->console().err << "fsdpctl: " << status.message() << "\n";
  return kExitUsage;
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

// The plan of a spec, or the exit code of what was told already.
std::variant<v1::Plan, int> PlanHere(Session* session, const SpecText& spec, const ProfileText* profile) {
  const int64_t budget = profile == nullptr ? 0 : profile->profile.budget_bytes();
  const Plan plan = MakePlan(spec.spec, budget);
  v1::Plan proto = ToProto(plan);
  const int code = ReportFaults(Located(proto.faults(), spec), &session->console());
  if (code != kExitOk) return code;
  AddPrediction(plan, profile == nullptr ? DefaultProfile(plan.spec.device) : profile->profile,
                WantsTimeline(session->line()), &proto);
  return proto;
}

std::variant<v1::Plan, int> AskForPlan(Session* session, const SpecText& spec, const ProfileText* profile) {
  if (const absl::Status status = session->client().Connect(); !status.ok()) return session->Fail(status);
  v1::PlanJobRequest request;
  *request.mutable_spec() = spec.spec;
  if (profile != nullptr) *request.mutable_profile() = ToProto(profile->profile);
  request.set_timeline(WantsTimeline(session->line()));
  absl::StatusOr<v1::PlanJobResponse> answer = session->client().PlanJob(request);
  if (!answer.ok()) return FailSpec(session, answer.status(), spec);
  ReportFaults(Located(answer->plan().faults(), spec), &session->console());
  return std::move(*answer->mutable_plan());
}

absl::Status WriteFile(const char* flag, const std::string& path, const std::string& text) {
  errno = 0;
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << text;
  file.close();
  if (file) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(flag, " ", path, ": ", std::strerror(errno)));
}

absl::Status WritePlanFiles(const CommandLine& line, const v1::Plan& plan) {
  if (!WantsTimeline(line)) return absl::OkStatus();
  if (!plan.prediction().has_timeline()) {
    return absl::UnimplementedError("the coordinator sent no timeline (is it an older one?); add --offline");
  }
  const Timeline timeline = TimelineOf(plan);
  if (!line.trace.empty()) FSDPD_RETURN_IF_ERROR(WriteFile("--trace", line.trace, TraceJson({timeline})));
  if (line.picture.empty()) return absl::OkStatus();
  return WriteFile("--picture", line.picture, Picture(timeline));
}

int RunPlan(Session* session, const SpecText& spec) {
  const CommandLine& line = session->line();
  std::optional<ProfileText> profile;
  if (!line.profile.empty()) {
    absl::StatusOr<ProfileText> loaded = LoadProfile(line.profile);
    if (!loaded.ok()) return Usage(session, loaded.status());
    if (ReportFaults(loaded->faults, &session->console()) != kExitOk) return kExitUsage;
    profile = *std::move(loaded);
  }
  const ProfileText* given = profile.has_value() ? &*profile : nullptr;
  std::variant<v1::Plan, int> result =
      line.offline ? PlanHere(session, spec, given) : AskForPlan(session, spec, given);
  if (const int* code = std::get_if<int>(&result)) return *code;
  v1::Plan& plan = std::get<v1::Plan>(result);
  if (const absl::Status status = WritePlanFiles(line, plan); !status.ok()) return Usage(session, status);
  plan.mutable_prediction()->clear_timeline();  // It was for the files.
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
  if (line.command == "profile-device") return RunProfileCommand(line, console);
  return line.file.empty() ? RunJobCommand(line, console) : RunSpecCommand(line, console);
}

}  // namespace fsdpd
