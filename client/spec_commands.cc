// What fsdpctl does with a spec: validate, plan, submit. RunSubmit() makes one SubmitJob call, with a request
// id under which a repeated call finds the same job; the coordinator's JobService takes it from there.
#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <absl/time/clock.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <optional>
#include <sstream>
#include <tuple>
#include <utility>
#include <variant>

#include "base/check.h"
#include "base/ids.h"
#include "client/checkpoint_choice.h"
#include "client/commands.h"
#include "client/message_output.h"
#include "client/outcome.h"
#include "client/output_file.h"
#include "client/plan_text.h"
#include "client/profile_file.h"
#include "client/search_text.h"
#include "client/session.h"
#include "client/spec_array.h"
#include "client/spec_file.h"
#include "client/spec_print.h"
#include "fsdp/plan/plan.h"
#include "fsdp/plan/predict/timeline.h"
#include "fsdp/plan/prediction.h"
#include "fsdp/plan/search/candidates.h"
#include "fsdp/plan/search/search.h"
#include "fsdp/plan/spec/defaults.h"

namespace fsdpd {
namespace {

constexpr size_t kMaxTold = 100;  // As many as client/spec_text.h keeps.

SpecFaults Located(const google::protobuf::RepeatedPtrField<v1::Fault>& faults, const SpecText& spec) {
  SpecFaults located;
  for (const v1::Fault& fault : faults) located.push_back(Locate(ToViolation(fault), spec.places));
  return located;
}

SpecFaults Located(const Violations& violations, const SpecText& spec) {
  SpecFaults located;
  for (const Violation& violation : violations) located.push_back(Locate(violation, spec.places));
  return located;
}

// Tells every fault, those of the text among them, in the order of the file: as lines, and for programs as
// data too where the spec is refused, unless the command's data is something else. The exit code.
int Tell(Session* session, const SpecText& spec, SpecFaults faults, bool as_data = true) {
  faults.insert(faults.begin(), spec.faults.begin(), spec.faults.end());
  std::stable_sort(faults.begin(), faults.end(), [](const SpecFault& a, const SpecFault& b) {
    return std::tie(a.place.file, a.place.line, a.place.column) <
           std::tie(b.place.file, b.place.line, b.place.column);
  });
  if (faults.size() > kMaxTold) {
    // What refuses is told before what warns.
    std::stable_partition(faults.begin(), faults.end(),
                          [](const SpecFault& fault) { return fault.violation.level == FaultLevel::kError; });
    session->console().err << absl::StrCat("the first ", kMaxTold, " of ", faults.size(), ":\n");
    faults.resize(kMaxTold);
  }
  const int code = ReportFaults(faults, &session->console());
  const CommandLine& line = session->line();
  if (line.output == "table" || !as_data || (code == kExitOk && line.command != "validate")) return code;
  session->console().out << Rendered(ToProto(faults), line.output);
  return code;
}

// What the file says that cannot be read refuses the spec before anybody is asked; what can be read is judged
// here.
int TellUnreadable(Session* session, const SpecText& spec) {
  if (!spec.is_tree) return Tell(session, spec, {});
  return Tell(session, spec,
              Located(MakePlan(spec.spec, /*budget_bytes_per_rank=*/0, spec.unread).faults, spec));
}

absl::StatusOr<v1::ValidateJobResponse> Validate(Session* session, const SpecText& spec) {
  v1::ValidateJobRequest request;
  *request.mutable_spec() = spec.spec;
  return session->client().ValidateJob(request);
}

// A refused spec is told with places. The refusal's details have field and text only, so the coordinator is
// asked once more for the faults themselves; where that fails, the details have to do.
int FailSpec(Session* session, const absl::Status& status, const SpecText& spec, bool as_data = true) {
  if (!absl::IsInvalidArgument(status) || FieldViolationsOf(status).empty()) return session->Fail(status);
  if (ReasonOf(status) != "BAD_SPEC") return session->Fail(status);
  const absl::StatusOr<v1::ValidateJobResponse> answer = Validate(session, spec);
  SpecFaults faults;
  if (answer.ok()) faults = Located(answer->faults(), spec);
  if (!HasErrors(faults)) faults = Located(FieldViolationsOf(status), spec);
  return Tell(session, spec, faults, as_data);
}

// `--from`: the checkpoint of another job becomes what this one starts from. An exit code where it cannot be,
// which is told already.
std::optional<int> TakeFrom(Session* session, SpecText* spec) {
  const std::string& from = session->line().from;
  if (from.empty()) return std::nullopt;
  const absl::StatusOr<CheckpointChoice> choice = ParseCheckpointChoice(from);
  FSDPD_CHECK(choice.ok());
  v1::GetJobRequest request;
  request.set_id(choice->job);
  const absl::StatusOr<v1::GetJobResponse> answer = session->client().GetJob(request);
  if (!answer.ok()) return session->Fail(answer.status());
  const absl::StatusOr<v1::SavedCheckpoint> chosen = Choose(*choice, answer->job());
  if (!chosen.ok()) {
    session->console().err << "fsdpctl: --from: " << Escaped(std::string(chosen.status().message())) << "\n";
    return kExitNotFound;
  }
  const std::string& load = spec->spec.checkpoint().load();
  if (!load.empty() && load != chosen->path()) {
    const Violation fault{"from_and_load",
                          FaultLevel::kError,
                          "checkpoint.load",
                          absl::StrCat("is ", load, ", and --from ", from, " is ", chosen->path()),
                          "leave one of them out",
                          "",
                          ""};
    return Tell(session, *spec, {Locate(fault, spec->places)});
  }
  spec->spec.mutable_checkpoint()->set_load(chosen->path());
  return std::nullopt;
}

v1::SubmitJobRequest RequestOf(const CommandLine& line, const SpecText& spec) {
  v1::SubmitJobRequest request;
  *request.mutable_spec() = spec.spec;
  request.set_request_id(line.request_id.empty() ? NewToken() : line.request_id);
  request.set_preemptible(line.preemptible);
  request.set_project(line.project);
  request.mutable_after()->Assign(line.after.begin(), line.after.end());
  return request;
}

int RunSubmit(Session* session, SpecText spec) {
  if (const absl::Status status = session->OpenRecord(); !status.ok()) return session->Fail(status);
  if (const absl::Status status = session->client().Connect(); !status.ok()) return session->Fail(status);
  if (const std::optional<int> code = TakeFrom(session, &spec)) return *code;
  const CommandLine& line = session->line();
  Console& console = session->console();
  const v1::SubmitJobRequest request = RequestOf(line, spec);
  const absl::StatusOr<v1::SubmitJobResponse> response = session->client().SubmitJob(request);
  if (!response.ok()) return FailSpec(session, response.status(), spec);
  Tell(session, spec, Located(response->faults(), spec));
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

// One of `submit --array`: where its files go is its own.
void NumberSpec(size_t index, v1::JobSpec* spec) {
  absl::StrAppend(spec->mutable_name(), "-", index);
  if (spec->checkpoint().dir().empty()) return;
  std::string* dir = spec->mutable_checkpoint()->mutable_dir();
  absl::StrAppend(dir, absl::EndsWith(*dir, "/") ? "" : "/", index);
}

int Usage(Session* session, const absl::Status& status) {
  session->console().err << "fsdpctl: " << status.message() << "\n";
  return kExitUsage;
}

// Every spec is good before the first is submitted. Those that are, where one is refused after all, stay.
int SubmitAll(Session* session, const std::vector<SpecText>& specs) {
  const CommandLine& line = session->line();
  for (const SpecText& spec : specs) {
    const SpecFaults faults = Located(MakePlan(spec.spec, /*budget_bytes_per_rank=*/0).faults, spec);
    if (HasErrors(faults)) return Tell(session, spec, faults);
  }
  v1::ListJobsResponse submitted;
  const std::string& first = specs.front().spec.name();
  const std::string array =
      line.request_id.empty() ? NewJobId(first.substr(0, first.rfind('-'))) : line.request_id;
  if (absl::StrCat(array, kArrayMark, specs.size() - 1).size() > kMaxRequestId)
    return Usage(session, absl::InvalidArgumentError(absl::StrCat("--request-id: '", array,
                                                                  "' and a job's number have more than ",
                                                                  kMaxRequestId, " characters")));
  int code = kExitOk;
  for (size_t i = 0; i < specs.size() && code == kExitOk; ++i) {
    v1::SubmitJobRequest request = RequestOf(line, specs[i]);
    request.set_request_id(absl::StrCat(array, kArrayMark, i));
    const absl::StatusOr<v1::SubmitJobResponse> response = session->client().SubmitJob(request);
    if (response.ok()) *submitted.add_jobs() = response->job();
    // The data is of the jobs that there are now.
    if (!response.ok()) code = FailSpec(session, response.status(), specs[i], /*as_data=*/false);
  }
  Console& console = session->console();
  if (line.output != "table") {
    console.out << Rendered(submitted, line.output);
  } else {
    for (const v1::Job& job : submitted.jobs()) console.out << job.id() << "\n";
  }
  console.err << submitted.jobs_size() << " of " << specs.size() << " jobs submitted; `fsdpctl get --array "
              << array << "` shows them, `fsdpctl cancel --array " << array << "` ends them\n";
  return code;
}

int RunArray(const CommandLine& line, Console* console) {
  const auto overrides = ArrayOverrides(line.arrays);
  Session session(line, console);
  if (!overrides.ok())
    return Usage(&session,
                 absl::InvalidArgumentError(absl::StrCat("--array: ", overrides.status().message())));
  // Each spec is read anew, and stdin can be read once.
  std::string text;
  if (line.file == "-") {
    absl::StatusOr<std::string> read = ReadText(line.file, console->in);
    if (!read.ok()) return Usage(&session, read.status());
    text = *std::move(read);
  }
  std::vector<SpecText> specs;
  for (const std::vector<std::string>& own : *overrides) {
    std::vector<std::string> sets = line.sets;
    sets.insert(sets.end(), own.begin(), own.end());
    std::istringstream input(text);
    absl::StatusOr<SpecText> spec = LoadSpec(line.file, sets, input);
    if (!spec.ok()) return Usage(&session, spec.status());
    if (HasErrors(spec->faults)) return TellUnreadable(&session, *spec);
    NumberSpec(specs.size(), &spec->spec);
    specs.push_back(*std::move(spec));
  }
  if (const absl::Status status = session.client().Connect(); !status.ok()) return session.Fail(status);
  for (SpecText& spec : specs) {
    if (const std::optional<int> code = TakeFrom(&session, &spec)) return *code;
  }
  return SubmitAll(&session, specs);
}

bool WantsTimeline(const CommandLine& line) { return !line.trace.empty() || !line.picture.empty(); }

int RunValidate(Session* session, const SpecText& spec) {
  const CommandLine& line = session->line();
  SpecFaults faults;
  if (line.offline) {
    faults = Located(MakePlan(spec.spec, /*budget_bytes_per_rank=*/0).faults, spec);
  } else {
    if (const absl::Status status = session->client().Connect(); !status.ok()) return session->Fail(status);
    const absl::StatusOr<v1::ValidateJobResponse> answer = Validate(session, spec);
    if (!answer.ok()) return session->Fail(answer.status());
    faults = Located(answer->faults(), spec);
  }
  const int code = Tell(session, spec, faults);
  if (line.output == "table" && code == kExitOk) session->console().err << line.file << ": valid\n";
  return code;
}

// The plan of a spec, or the exit code of what was told already.
std::variant<v1::Plan, int> PlanHere(Session* session, const SpecText& spec, const ProfileText* profile) {
  const int64_t budget = profile == nullptr ? 0 : profile->profile.budget_bytes();
  const Plan plan = MakePlan(spec.spec, budget);
  v1::Plan proto = ToProto(plan);
  const int code = Tell(session, spec, Located(plan.faults, spec));
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
  Tell(session, spec, Located(answer->plan().faults(), spec));
  return std::move(*answer->mutable_plan());
}

absl::Status WritePlanFiles(const CommandLine& line, const v1::Plan& plan) {
  if (!WantsTimeline(line)) return absl::OkStatus();
  if (!plan.prediction().has_timeline()) {
    return absl::UnimplementedError("the coordinator sent no timeline (is it an older one?); add --offline");
  }
  const Timeline timeline = TimelineOf(plan);
  if (!line.trace.empty()) FSDPD_RETURN_IF_ERROR(WriteOutput("--trace", line.trace, TraceJson({timeline})));
  if (line.picture.empty()) return absl::OkStatus();
  return WriteOutput("--picture", line.picture, Picture(timeline));
}

// What was found, or the exit code of what was told already.
std::variant<v1::PlanSearch, int> SearchHere(Session* session, const SpecText& spec,
                                             const ProfileText* profile) {
  const bool cpu = WithDefaults(spec.spec, nullptr).resources().device() == v1::DEVICE_CPU;
  SearchOptions options;
  options.held = session->line().hold;
  const absl::Time begin = absl::Now();
  Searched searched = SearchPlans(
      spec.spec,
      profile != nullptr ? profile->profile : DefaultProfile(cpu ? DeviceKind::kCpu : DeviceKind::kCuda),
      options);
  if (HasErrors(searched.faults)) return Tell(session, spec, Located(searched.faults, spec));
  searched.search.set_seconds(absl::ToDoubleSeconds(absl::Now() - begin));
  return std::move(searched.search);
}

std::variant<v1::PlanSearch, int> AskForSearch(Session* session, const SpecText& spec,
                                               const ProfileText* profile) {
  if (const absl::Status status = session->client().Connect(); !status.ok()) return session->Fail(status);
  v1::SearchPlansRequest request;
  *request.mutable_spec() = spec.spec;
  if (profile != nullptr) *request.mutable_profile() = ToProto(profile->profile);
  for (const std::string& field : session->line().hold) request.add_hold(field);
  absl::StatusOr<v1::SearchPlansResponse> answer = session->client().SearchPlans(request);
  if (!answer.ok()) return FailSpec(session, answer.status(), spec);
  return std::move(*answer->mutable_search());
}

// The spec of the fastest way is for a file, and the rest for people or programs. That nothing fits is an
// answer, and refuses the spec.
int RunSearch(Session* session, const SpecText& spec, const ProfileText* profile) {
  const CommandLine& line = session->line();
  if (const Violations faults = CheckHeld(line.hold); !faults.empty()) {
    return Usage(session,
                 absl::InvalidArgumentError(absl::StrCat("--hold: ", faults[0].reason, "; ", faults[0].fix)));
  }
  if (const absl::Status output = CheckOutput("--write", line.write); !line.write.empty() && !output.ok())
    return Usage(session, output);
  std::variant<v1::PlanSearch, int> result =
      line.offline ? SearchHere(session, spec, profile) : AskForSearch(session, spec, profile);
  if (const int* code = std::get_if<int>(&result)) return *code;
  const v1::PlanSearch& search = std::get<v1::PlanSearch>(result);
  const bool found = search.found_size() > 0;
  // First: a file that cannot be written is no reason to search again.
  session->console().out << (line.output == "table" ? SearchText(search, spec.spec.name())
                                                    : Rendered(search, line.output));
  if (!line.write.empty() && found) {
    const absl::Status written = WriteOutput("--write", line.write, ToYaml(search.found(0).spec()));
    if (!written.ok()) return Usage(session, written);
  }
  if (!found) {
    session->console().err << "fsdpctl: no way to run " << line.file << " fits"
                           << (search.complete() ? "" : ", of those that there was time for") << "\n";
  }
  return found ? kExitOk : kExitSpecRefused;
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
  if (line.search) return RunSearch(session, spec, given);
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
  if (!line.arrays.empty()) return RunArray(line, console);
  const absl::StatusOr<SpecText> spec = LoadSpec(line.file, line.sets, console->in);
  if (!spec.ok()) {
    console->err << "fsdpctl: " << spec.status().message() << "\n";
    return kExitUsage;
  }
  Session session(line, console);
  if (HasErrors(spec->faults)) return TellUnreadable(&session, *spec);
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
  if (line.command == "ckpt") return RunCkptCommand(line, console);
  if (line.command == "token") return RunTokenCommand(line, console);
  if (const absl::Status read = line.offline ? absl::OkStatus() : ReadCredentials(&line); !read.ok()) {
    console->err << "fsdpctl: " << read.message() << "\n";
    return kExitUsage;
  }
  for (const char* command : {"submit", "validate", "plan"}) {
    if (line.command == command) return RunSpecCommand(line, console);
  }
  return RunJobCommand(line, console);
}

}  // namespace fsdpd
