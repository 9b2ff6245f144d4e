// Commands that read a spec: validate, plan, submit. RunSubmit() makes one SubmitJob call, with a request id
// by which a repeated call returns the same job. The coordinator's JobService handles it.
#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <absl/time/time.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <map>
#include <optional>
#include <set>
#include <sstream>
#include <tuple>
#include <utility>
#include <variant>

#include "base/check.h"
#include "base/ids.h"
#include "base/process/error_line.h"
#include "client/commands/commands.h"
#include "client/commands/profile_file.h"
#include "client/commands/session.h"
#include "client/connect/job_choice.h"
#include "client/connect/outcome.h"
#include "client/flags/completion.h"
#include "client/flags/parse_command_line.h"
#include "client/spec/named_checkpoint.h"
#include "client/spec/spec_array.h"
#include "client/spec/spec_file.h"
#include "client/spec/spec_paths.h"
#include "client/spec/spec_print.h"
#include "client/text/message_output.h"
#include "client/text/output_file.h"
#include "client/text/plan_text.h"
#include "client/text/search_text.h"
#include "fsdp/plan/plan.h"
#include "fsdp/plan/predict/timeline.h"
#include "fsdp/plan/prediction.h"
#include "fsdp/plan/search/candidates.h"
#include "fsdp/plan/search/search.h"
#include "fsdp/plan/spec/defaults.h"

namespace fsdpd {
namespace {

constexpr size_t kMaxPathsNamed = 5;
constexpr size_t kMaxReported = 100;  // The limit of client/spec/spec_text.h.

LocatedViolations Located(const google::protobuf::RepeatedPtrField<v1::Violation>& violations,
                          const SpecText& spec) {
  LocatedViolations located;
  for (const v1::Violation& fault : violations) located.push_back(Locate(ToViolation(fault), spec.places));
  return located;
}

LocatedViolations Located(const Violations& violations, const SpecText& spec) {
  LocatedViolations located;
  for (const Violation& violation : violations) located.push_back(Locate(violation, spec.places));
  return located;
}

// Reports all violations, including those of the spec's text, in file order. With -o json or yaml, a rejected
// spec is also printed as data if `as_data`. Returns the exit code.
int ReportSpec(Session* session, const SpecText& spec, LocatedViolations violations, bool as_data = true) {
  violations.insert(violations.begin(), spec.violations.begin(), spec.violations.end());
  std::stable_sort(violations.begin(), violations.end(),
                   [](const LocatedViolation& a, const LocatedViolation& b) {
                     return std::tie(a.place.file, a.place.line, a.place.column) <
                            std::tie(b.place.file, b.place.line, b.place.column);
                   });
  if (violations.size() > kMaxReported) {
    // Errors before warnings, so that the limit does not hide an error.
    std::stable_partition(violations.begin(), violations.end(), [](const LocatedViolation& fault) {
      return fault.violation.level == ViolationLevel::kError;
    });
    session->console().err << absl::StrCat("the first ", kMaxReported, " of ", violations.size(), ":\n");
    violations.resize(kMaxReported);
  }
  const int code = ReportViolations(violations, &session->console());
  const CommandLine& line = session->line();
  if (!IsData(line.output) || !as_data || (code == kExitOk && line.command != "validate")) return code;
  session->console().out << Rendered(ToProto(violations), line.output);
  return code;
}

// Rejects a spec with parse errors without calling the coordinator. The fields that could be parsed are
// validated here, so that all errors are reported together.
int ReportParseErrors(Session* session, const SpecText& spec) {
  if (!spec.is_tree) return ReportSpec(session, spec, {});
  return ReportSpec(
      session, spec,
      Located(MakePlan(spec.spec, /*budget_bytes_per_rank=*/0, spec.unparsed).violations, spec));
}

absl::StatusOr<v1::ValidateJobResponse> Validate(Session* session, const SpecText& spec) {
  v1::ValidateJobRequest request;
  *request.mutable_spec() = spec.spec;
  return session->client().ValidateJob(request);
}

// Reports a rejected spec with positions. The error details have only field and text, so the violations are
// requested with ValidateJob(). If that fails, the details are used.
int FailSpec(Session* session, const absl::Status& status, const SpecText& spec, bool as_data = true) {
  if (absl::IsNotFound(status) && !session->line().after.empty()) {
    const int code = session->Fail(status);
    session->console().err
        << "fsdpctl: --after requires ids of jobs; `fsdpctl get --array ARRAY` lists those of an array\n";
    return code;
  }
  if (!absl::IsInvalidArgument(status) || FieldViolationsOf(status).empty()) return session->Fail(status);
  if (ReasonOf(status) != "INVALID_SPEC") return session->Fail(status);
  const absl::StatusOr<v1::ValidateJobResponse> answer = Validate(session, spec);
  LocatedViolations violations;
  if (answer.ok()) violations = Located(answer->violations(), spec);
  if (!HasErrors(violations)) violations = Located(FieldViolationsOf(status), spec);
  return ReportSpec(session, spec, violations, as_data);
}

// Sets checkpoint.load to the checkpoint of `--from`. Returns an exit code after it has reported an error.
std::optional<int> ApplyFrom(Session* session, SpecText* spec) {
  const std::string& from = session->line().from;
  if (from.empty()) return std::nullopt;
  const absl::StatusOr<CheckpointChoice> choice = ParseCheckpointChoice(from);
  FSDPD_CHECK(choice.ok());
  const absl::StatusOr<v1::Job> job = FindJob(&session->client(), choice->job);
  if (!job.ok()) return session->Fail(job.status());
  const absl::StatusOr<v1::SavedCheckpoint> chosen = ResolveCheckpoint(*choice, *job);
  if (!chosen.ok()) {
    session->console().err << "fsdpctl: --from: " << Escaped(std::string(chosen.status().message()))
                           << " [NOT_FOUND]\n";
    return kExitNotFound;
  }
  const std::string& load = spec->spec.checkpoint().load();
  if (!load.empty() && load != chosen->path()) {
    const Violation fault{"from_and_load",
                          ViolationLevel::kError,
                          "checkpoint.load",
                          absl::StrCat("is ", load, ", but --from ", from, " is ", chosen->path()),
                          "remove one of them",
                          "",
                          ""};
    return ReportSpec(session, *spec, {Locate(fault, spec->places)});
  }
  spec->spec.mutable_checkpoint()->set_load(chosen->path());
  return std::nullopt;
}

// Completes the id prefixes of `--after`. Returns an exit code after it has reported an ambiguous prefix.
// Unknown ids are left to the coordinator.
std::optional<int> CompleteAfter(Session* session, std::vector<std::string>* after) {
  *after = session->line().after;
  for (std::string& id : *after) {
    const absl::StatusOr<v1::Job> job = FindJob(&session->client(), id);
    if (job.ok() && !job->id().empty()) id = job->id();
    if (absl::IsNotFound(job.status()) && ReasonOf(job.status()).empty()) return session->Fail(job.status());
  }
  return std::nullopt;
}

v1::SubmitJobRequest RequestOf(const CommandLine& line, const std::vector<std::string>& after,
                               const SpecText& spec) {
  v1::SubmitJobRequest request;
  *request.mutable_spec() = spec.spec;
  request.set_request_id(line.request_id.empty() ? NewToken() : line.request_id);
  request.set_preemptible(line.preemptible);
  request.set_project(line.project);
  request.mutable_after()->Assign(after.begin(), after.end());
  for (const std::string& each : line.labels) {
    v1::Label* label = request.add_labels();
    label->set_key(each.substr(0, each.find('=')));
    label->set_value(each.substr(each.find('=') + 1));
  }
  return request;
}

int RunSubmit(Session* session, SpecText spec) {
  if (const absl::Status status = session->OpenRecord(); !status.ok()) return session->Fail(status);
  if (const absl::Status status = session->client().Connect(); !status.ok()) return session->Fail(status);
  if (const std::optional<int> code = ApplyFrom(session, &spec)) return *code;
  const CommandLine& line = session->line();
  Console& console = session->console();
  std::vector<std::string> after;
  if (const std::optional<int> code = CompleteAfter(session, &after)) return *code;
  const v1::SubmitJobRequest request = RequestOf(line, after, spec);
  const absl::StatusOr<v1::SubmitJobResponse> response = session->client().SubmitJob(request);
  if (!response.ok()) return FailSpec(session, response.status(), spec);
  ReportSpec(session, spec, Located(response->violations(), spec));
  const std::string& id = response->job().id();
  if (line.follow) return session->Follow(id, /*submitted_now=*/true);
  if (!IsData(line.output)) {
    console.out << id << "\n";
    if (line.output == "table") console.err << "submitted; `fsdpctl watch " << id << "` follows it\n";
  } else {
    console.out << Rendered(response->job(), line.output);
  }
  return kExitOk;
}

// Adds the index of an array job to its name and checkpoint directory, which must be unique.
void NumberSpec(size_t index, v1::JobSpec* spec) {
  if (!spec->name().empty()) absl::StrAppend(spec->mutable_name(), "-", index);
  if (spec->checkpoint().dir().empty()) return;
  std::string* dir = spec->mutable_checkpoint()->mutable_dir();
  absl::StrAppend(dir, absl::EndsWith(*dir, "/") ? "" : "/", index);
}

int Usage(Session* session, const absl::Status& status) {
  session->console().err << "fsdpctl: " << WithErrorId(status.message(), "FILE_ERROR") << "\n";
  return kExitUsage;
}

struct ArrayJob {
  std::vector<std::string> own;  // The overrides of this job, as PATH=VALUE.
  SpecText spec;
};

// Violations of each job, including those of the spec's text.
std::vector<LocatedViolations> ViolationsOf(const std::vector<ArrayJob>& jobs) {
  std::vector<LocatedViolations> violations;
  for (const ArrayJob& job : jobs) {
    const SpecText& spec = job.spec;
    violations.push_back(spec.violations);
    if (!spec.is_tree) continue;
    const LocatedViolations judged =
        Located(MakePlan(spec.spec, /*budget_bytes_per_rank=*/0, spec.unparsed).violations, spec);
    violations.back().insert(violations.back().end(), judged.begin(), judged.end());
  }
  return violations;
}

// Key by which a violation is the same in several jobs. Texts about name and directory contain the job's
// index.
std::string KeyOf(const LocatedViolation& fault) {
  const Violation& violation = fault.violation;
  const bool is_numbered = violation.field == "name" || violation.field == "checkpoint.dir";
  return is_numbered ? absl::StrCat(violation.field, " ", violation.rule) : Render(fault);
}

// Adds the overrides of the job to a violation, or locates it at the override that it is about.
LocatedViolation WithOverrides(LocatedViolation fault, const std::vector<std::string>& own) {
  for (const std::string& set : own) {
    if (fault.place.file != absl::StrCat("--set ", set)) continue;
    fault.place.file = absl::StrCat("--array ", set);
    return fault;
  }
  std::string& reason = fault.violation.reason;
  reason = absl::StrCat("with ", absl::StrJoin(own, " and "), ": ", reason);
  return fault;
}

// Reports the violations of all jobs if any job is rejected, without duplicates. Otherwise returns nullopt.
std::optional<int> ReportRejectedJobs(Session* session, const std::vector<ArrayJob>& jobs) {
  const std::vector<LocatedViolations> violations = ViolationsOf(jobs);
  std::map<std::string, std::set<size_t>> having;
  bool rejected = false;
  for (size_t i = 0; i < jobs.size(); ++i) {
    rejected |= HasErrors(violations[i]);
    for (const LocatedViolation& fault : violations[i]) having[KeyOf(fault)].insert(i);
  }
  if (!rejected) return std::nullopt;
  LocatedViolations reported;
  std::set<std::string> once;
  for (size_t i = 0; i < jobs.size(); ++i) {
    for (const LocatedViolation& fault : violations[i]) {
      const bool is_common = having[KeyOf(fault)].size() == jobs.size();
      if (is_common && i > 0) continue;
      LocatedViolation one = is_common ? fault : WithOverrides(fault, jobs[i].own);
      if (once.insert(Render(one)).second) reported.push_back(std::move(one));
    }
  }
  return ReportSpec(session, SpecText(), std::move(reported));
}

// Reports how many jobs of an array were submitted. After a call without a response, there may be one more.
void ReportArray(const std::string& array, int submitted, size_t all, bool can_continue, std::ostream* err) {
  *err << submitted << " of " << all << " jobs submitted";
  if (submitted > 0 || can_continue) {
    *err << "; `fsdpctl get --array " << array << "` shows them, `fsdpctl cancel --array " << array
         << "` ends them";
  }
  if (can_continue) *err << ", and the same command with --request-id " << array << " submits the rest";
  *err << "\n" << std::flush;
}

// Jobs that were submitted before an error or an interrupt remain. Therefore the id of the array is printed
// before the first call, and each job id immediately.
int SubmitAll(Session* session, const std::string& array, const std::vector<ArrayJob>& jobs) {
  const CommandLine& line = session->line();
  Console& console = session->console();
  std::vector<std::string> after;
  if (const std::optional<int> ambiguous = CompleteAfter(session, &after)) return *ambiguous;
  console.err << "submitting " << jobs.size() << (jobs.size() == 1 ? " job" : " jobs") << " as array "
              << array << "\n"
              << std::flush;
  v1::ListJobsResponse submitted;
  absl::Status status;
  int code = kExitOk;
  for (size_t i = 0; i < jobs.size() && status.ok(); ++i) {
    if (console.interrupt->fired()) {
      status = absl::CancelledError("interrupted");
      code = kExitInterrupted;
      break;
    }
    v1::SubmitJobRequest request = RequestOf(line, after, jobs[i].spec);
    request.set_request_id(absl::StrCat(array, kArraySeparator, i));
    const absl::StatusOr<v1::SubmitJobResponse> response = session->client().SubmitJob(request);
    status = response.status();
    // The data output has only the jobs that were submitted.
    if (!response.ok()) {
      code = FailSpec(session, status, jobs[i].spec, /*as_data=*/false);
      continue;
    }
    *submitted.add_jobs() = response->job();
    if (!IsData(line.output)) console.out << response->job().id() << "\n" << std::flush;
  }
  if (IsData(line.output)) console.out << Rendered(submitted, line.output);
  const bool can_continue =
      absl::IsCancelled(status) || absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status);
  ReportArray(array, submitted.jobs_size(), jobs.size(), can_continue, &console.err);
  return code;
}

// The specs of an array, or the exit code of an error that was reported.
std::variant<std::vector<ArrayJob>, int> LoadArray(Session* session,
                                                   const std::vector<std::vector<std::string>>& overrides) {
  const CommandLine& line = session->line();
  // Each spec is parsed separately, but stdin can be read only once.
  std::string text;
  if (line.file == "-") {
    absl::StatusOr<std::string> read = ReadText(line.file, session->console().in);
    if (!read.ok()) return Usage(session, read.status());
    text = *std::move(read);
  }
  std::vector<ArrayJob> jobs;
  for (const std::vector<std::string>& own : overrides) {
    std::vector<std::string> sets = line.sets;
    sets.insert(sets.end(), own.begin(), own.end());
    std::istringstream input(text);
    absl::StatusOr<SpecText> spec = LoadSpec(line.file, sets, input);
    if (!spec.ok()) return Usage(session, spec.status());
    NumberSpec(jobs.size(), &spec->spec);
    jobs.push_back({own, *std::move(spec)});
  }
  return jobs;
}

// Validates all specs before the first job is submitted.
int RunArray(const CommandLine& line, Console* console) {
  const auto overrides = ArrayOverrides(line.arrays);
  Session session(line, console);
  if (!overrides.ok())
    return Usage(&session,
                 absl::InvalidArgumentError(absl::StrCat("--array: ", overrides.status().message())));
  std::variant<std::vector<ArrayJob>, int> loaded = LoadArray(&session, *overrides);
  if (const int* code = std::get_if<int>(&loaded)) return *code;
  std::vector<ArrayJob>& jobs = std::get<std::vector<ArrayJob>>(loaded);
  const bool readable = std::none_of(jobs.begin(), jobs.end(),
                                     [](const ArrayJob& job) { return HasErrors(job.spec.violations); });
  if (!readable) return *ReportRejectedJobs(&session, jobs);
  if (const absl::Status status = session.client().Connect(); !status.ok()) return session.Fail(status);
  for (ArrayJob& job : jobs) {
    if (const std::optional<int> code = ApplyFrom(&session, &job.spec)) return *code;
  }
  if (const std::optional<int> code = ReportRejectedJobs(&session, jobs)) return *code;
  const std::string& first = jobs.front().spec.spec.name();
  const std::string array =
      line.request_id.empty() ? NewJobId(first.substr(0, first.rfind('-'))) : line.request_id;
  if (absl::StrCat(array, kArraySeparator, jobs.size() - 1).size() > kMaxRequestId)
    return Usage(&session, absl::InvalidArgumentError(absl::StrCat("--request-id: '", array,
                                                                   "' with a job number exceeds ",
                                                                   kMaxRequestId, " characters")));
  return SubmitAll(&session, array, jobs);
}

bool WantsTimeline(const CommandLine& line) { return !line.trace.empty() || !line.picture.empty(); }

int RunValidate(Session* session, const SpecText& spec) {
  const CommandLine& line = session->line();
  LocatedViolations violations;
  if (line.offline) {
    violations = Located(MakePlan(spec.spec, /*budget_bytes_per_rank=*/0).violations, spec);
  } else {
    if (const absl::Status status = session->client().Connect(); !status.ok()) return session->Fail(status);
    const absl::StatusOr<v1::ValidateJobResponse> answer = Validate(session, spec);
    if (!answer.ok()) return session->Fail(answer.status());
    violations = Located(answer->violations(), spec);
  }
  const int code = ReportSpec(session, spec, violations);
  if (line.output != "table" || code != kExitOk) return code;
  session->console().err << line.file << ": valid\n";
  const std::vector<std::string> paths = NodePathFields(spec.spec);
  if (paths.empty()) return code;
  const size_t named = std::min(paths.size(), kMaxPathsNamed);
  const std::string more = paths.size() > named ? absl::StrCat(" and ", paths.size() - named, " more") : "";
  session->console().err << line.file << ": not checked on the nodes: "
                         << absl::StrJoin(paths.begin(), paths.begin() + static_cast<std::ptrdiff_t>(named),
                                          ", ")
                         << more << "\n";
  return code;
}

// The plan of a spec, or the exit code of an error that was reported.
std::variant<v1::Plan, int> PlanHere(Session* session, const SpecText& spec, const ProfileText* profile) {
  const int64_t budget = profile == nullptr ? 0 : profile->profile.budget_bytes();
  const Plan plan = MakePlan(spec.spec, budget);
  v1::Plan proto = ToProto(plan);
  const int code = ReportSpec(session, spec, Located(plan.violations, spec));
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
  ReportSpec(session, spec, Located(answer->plan().violations(), spec));
  return std::move(*answer->mutable_plan());
}

absl::Status WritePlanFiles(const CommandLine& line, const v1::Plan& plan) {
  if (!WantsTimeline(line)) return absl::OkStatus();
  if (!plan.prediction().has_timeline()) {
    return absl::UnimplementedError(
        "the coordinator did not send a timeline (is it an older release?); add --offline");
  }
  const Timeline timeline = TimelineOf(plan);
  if (!line.trace.empty()) FSDPD_RETURN_IF_ERROR(WriteOutput("--trace", line.trace, TraceJson({timeline})));
  if (line.picture.empty()) return absl::OkStatus();
  return WriteOutput("--picture", line.picture, Picture(timeline));
}

// The result of a search, or the exit code of an error that was reported.
std::variant<v1::PlanSearch, int> SearchHere(Session* session, const SpecText& spec,
                                             const ProfileText* profile) {
  const CommandLine& line = session->line();
  const bool cpu = WithDefaults(spec.spec, nullptr).resources().device() == v1::DEVICE_CPU;
  SearchOptions options;
  options.held = line.hold;
  options.fix_of_no_time = "allow more time (--timeout), or hold fields";
  const Clock& clock = *session->console().clock;
  const absl::Time begin = clock.Now();
  if (line.flags.count("--timeout") > 0) {
    options.spent = [&clock, &line, begin] {
      return absl::ToDoubleSeconds(clock.Now() - begin) / line.timeout_seconds;
    };
  }
  Searched searched = SearchPlans(
      spec.spec,
      profile != nullptr ? profile->profile : DefaultProfile(cpu ? DeviceKind::kCpu : DeviceKind::kCuda),
      options);
  if (HasErrors(searched.violations)) return ReportSpec(session, spec, Located(searched.violations, spec));
  searched.search.set_seconds(absl::ToDoubleSeconds(clock.Now() - begin));
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

// Prints the result of a search, and writes the spec of the fastest configuration to --write. If nothing
// fits, the result is printed too, and the exit code is that of a rejected spec.
int RunSearch(Session* session, const SpecText& spec, const ProfileText* profile) {
  const CommandLine& line = session->line();
  if (const Violations violations = CheckHeld(line.hold); !violations.empty()) {
    return Usage(session, absl::InvalidArgumentError(absl::StrCat("--hold: ", violations[0].reason, "; ",
                                                                  violations[0].fix, " [INVALID_FLAG]")));
  }
  if (const absl::Status output = CheckOutput("--write", line.write); !line.write.empty() && !output.ok())
    return Usage(session, output);
  std::variant<v1::PlanSearch, int> result =
      line.offline ? SearchHere(session, spec, profile) : AskForSearch(session, spec, profile);
  if (const int* code = std::get_if<int>(&result)) return *code;
  const v1::PlanSearch& search = std::get<v1::PlanSearch>(result);
  const bool found = search.found_size() > 0;
  // Print first, so that a failed write does not lose the result.
  session->console().out << (line.output == "table" ? SearchText(search, spec.spec.name())
                                                    : Rendered(search, line.output));
  if (!line.write.empty() && found) {
    const absl::Status written = WriteOutput("--write", line.write, ToYaml(search.found(0).spec()));
    if (!written.ok()) return Usage(session, written);
  }
  if (found) return kExitOk;
  session->console().err
      << "fsdpctl: " << line.file << ": no configuration fits"
      << (search.complete() ? ""
                            : " among those searched, but the search is incomplete; search again, or with "
                              "a longer --timeout")
      << " [search_found_none]\n";
  // An incomplete search, such as one that the coordinator aborted, does not reject the spec.
  return search.complete() ? kExitSpecRefused : kExitTimeout;
}

int RunPlan(Session* session, const SpecText& spec) {
  const CommandLine& line = session->line();
  std::optional<ProfileText> profile;
  if (!line.profile.empty()) {
    absl::StatusOr<ProfileText> loaded = LoadProfile(line.profile);
    if (!loaded.ok()) return Usage(session, loaded.status());
    if (ReportViolations(loaded->violations, &session->console()) != kExitOk) return kExitUsage;
    profile = *std::move(loaded);
  }
  const ProfileText* given = profile.has_value() ? &*profile : nullptr;
  if (line.search) return RunSearch(session, spec, given);
  std::variant<v1::Plan, int> result =
      line.offline ? PlanHere(session, spec, given) : AskForPlan(session, spec, given);
  if (const int* code = std::get_if<int>(&result)) return *code;
  v1::Plan& plan = std::get<v1::Plan>(result);
  if (const absl::Status status = WritePlanFiles(line, plan); !status.ok()) return Usage(session, status);
  plan.mutable_prediction()->clear_timeline();  // Only WritePlanFiles() needs it.
  session->console().out << (line.output == "table" ? PlanText(plan, line.program)
                                                    : Rendered(plan, line.output));
  return kExitOk;
}

}  // namespace

int RunSpecCommand(const CommandLine& line, Console* console) {
  if (!line.arrays.empty()) return RunArray(line, console);
  const absl::StatusOr<SpecText> spec = LoadSpec(line.file, line.sets, console->in);
  if (!spec.ok()) {
    console->err << "fsdpctl: " << WithErrorId(spec.status().message(), "FILE_ERROR") << "\n";
    return kExitUsage;
  }
  Session session(line, console);
  if (HasErrors(spec->violations)) return ReportParseErrors(&session, *spec);
  if (line.command == "submit") return RunSubmit(&session, *spec);
  if (line.command == "validate") return RunValidate(&session, *spec);
  FSDPD_CHECK(line.command == "plan");
  return RunPlan(&session, *spec);
}

int RunFsdpctl(const std::vector<std::string>& arguments, Console* console) {
  if (!arguments.empty() && arguments[0] == kCompleteCommand)
    return RunComplete({arguments.begin() + 1, arguments.end()}, console);
  CommandLine line;
  if (const std::optional<int> code = ParseCommandLine(arguments, &line, console)) return *code;
  if (line.command == "migrate") return RunMigrateCommand(line, console);
  if (line.command == "profile-device") return RunProfileCommand(line, console);
  if (line.command == "ckpt") return RunCkptCommand(line, console);
  if (line.command == "token") return RunTokenCommand(line, console);
  if (line.command == "explain") return RunExplain(line, console);
  if (line.command == "completion") return RunCompletion(line, console);
  if (line.command == "context") return RunContextCommand(line, console);
  if (const absl::Status read = line.offline ? absl::OkStatus() : ReadAccess(&line); !read.ok()) {
    console->err << "fsdpctl: " << WithErrorId(read.message(), "FILE_ERROR") << "\n";
    return kExitUsage;
  }
  if (line.command == "diff") return RunDiff(line, console);
  for (const char* command : {"submit", "validate", "plan"}) {
    if (line.command == command) return RunSpecCommand(line, console);
  }
  return RunJobCommand(line, console);
}

}  // namespace fsdpd
