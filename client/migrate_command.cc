#include <absl/strings/str_cat.h>

#include <algorithm>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "base/error_line.h"
#include "client/commands.h"
#include "client/message_output.h"
#include "client/migrate/field_origins.h"
#include "client/migrate/job_of_megatron.h"
#include "client/migrate/megatron_rules.h"
#include "client/outcome.h"
#include "client/spec_file.h"
#include "client/spec_paths.h"
#include "client/spec_print.h"
#include "fsdp/plan/rules/rules.h"

namespace fsdpd {
namespace {

void Append(SpecFaults* faults, const SpecFaults& more) {
  faults->insert(faults->end(), more.begin(), more.end());
}

// Positions of the spec's fields that flags of `migrate` set.
FieldPlaces PlacesOf(const CommandLine& line) {
  FieldPlaces places = {{"name", {absl::StrCat("--name ", line.name), 0, 0}}};
  if (line.nodes.has_value()) places["resources.nodes"] = {absl::StrCat("--nodes ", *line.nodes), 0, 0};
  if (line.ranks_per_node.has_value()) {
    places["resources.ranks_per_node"] = {absl::StrCat("--ranks-per-node ", *line.ranks_per_node), 0, 0};
  }
  return places;
}

// Validates the generated spec. Each violation is located at the setting in the source file, or at the flag,
// that the field was derived from.
SpecFaults FaultsOf(const v1::JobSpec& job, const CommandLine& line, const std::string& file,
                    const SpecFaults& reported, Settings* settings) {
  SpecFaults faults;
  const FieldPlaces own = PlacesOf(line);
  for (const Violation& violation : CheckJob(job, UnreadFields(reported))) {
    SpecFault fault = Locate(violation, own);
    if (fault.place.file.empty()) fault = AtOrigin(violation, file, settings);
    // If some settings are in files that were not given, fields without a setting cannot be validated.
    if (fault.place.file == file && fault.place.line == 0 && settings->incomplete()) continue;
    faults.push_back(std::move(fault));
  }
  return faults;
}

// Makes paths absolute. A Megatron configuration does not contain the working directory of the run, so
// relative paths are resolved like those of a spec. A list of files is reported once.
SpecFaults ResolvePaths(const CommandLine& line, const std::string& file, Settings* settings,
                        v1::JobSpec* job) {
  const char* directory = line.file == "-" ? "the directory that fsdpctl runs in" : "the file's directory";
  SpecFaults faults;
  std::set<std::string> reported;
  for (const RelativePath& path : MakePathsAbsolute(DirectoryOf(line.file), job)) {
    const Violation made_whole = {"relative_path",
                                  FaultLevel::kAdjust,
                                  path.field,
                                  absl::StrCat("relative paths are taken from ", directory),
                                  "",
                                  path.written,
                                  path.absolute};
    const Violation unknown = {"path_of_node",
                               FaultLevel::kError,
                               path.field,
                               absl::StrCat("'", path.written, "' is not a path on the nodes"),
                               "write the absolute path on the nodes, /...",
                               "",
                               ""};
    const Violation& violation = NeedsExpansion(path.written) ? unknown : made_whole;
    SpecFault fault = AtOrigin(violation, file, settings);
    if (reported.insert(absl::StrCat(violation.rule, " ", fault.violation.field)).second)
      faults.push_back(std::move(fault));
  }
  return faults;
}

// Sorts by position in the file. Entries without a position come last.
void Sort(SpecFaults* faults) {
  std::stable_sort(faults->begin(), faults->end(), [](const SpecFault& a, const SpecFault& b) {
    return std::tuple(a.place.line == 0, a.place.line, a.place.column) <
           std::tuple(b.place.line == 0, b.place.line, b.place.column);
  });
}

}  // namespace

int RunMigrateCommand(const CommandLine& line, Console* console) {
  const absl::StatusOr<std::string> text = ReadText(line.file, console->in);
  if (!text.ok()) {
    console->err << "fsdpctl: " << WithErrorId(text.status().message(), "FILE_ERROR") << "\n";
    return kExitUsage;
  }
  const std::string file = line.file == "-" ? "<stdin>" : line.file;
  Settings settings;
  SpecFaults faults = ReadSettings(*text, file, &settings);
  v1::JobSpec job;
  if (faults.empty()) {
    faults = CheckMegatron(&settings);
    Append(&faults, JobOfMegatron(&settings, {line.nodes, line.ranks_per_node}, file, &job));
    job.set_name(line.name);
    Append(&faults, ResolvePaths(line, file, &settings, &job));
    Append(&faults, FaultsOf(job, line, file, faults, &settings));
    Sort(&faults);
  }
  const int code = ReportFaults(faults, console);
  if (code != kExitOk) {
    if (line.output != "table") console->out << Rendered(ToProto(faults), line.output);
    return code;
  }
  console->out << (line.output == "json" ? ToJson(job) : ToYaml(job));
  return code;
}

}  // namespace fsdpd
