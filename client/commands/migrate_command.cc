#include <absl/strings/str_cat.h>

#include <algorithm>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "base/process/error_line.h"
#include "client/commands/commands.h"
#include "client/connect/outcome.h"
#include "client/migrate/field_origins.h"
#include "client/migrate/trainer_job.h"
#include "client/spec/spec_file.h"
#include "client/spec/spec_paths.h"
#include "client/spec/spec_print.h"
#include "client/text/message_output.h"
#include "fsdp/plan/rules/rules.h"

namespace fsdpd {
namespace {

void Append(LocatedViolations* violations, const LocatedViolations& more) {
  violations->insert(violations->end(), more.begin(), more.end());
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
LocatedViolations ViolationsOf(const v1::JobSpec& job, const CommandLine& line, const std::string& file,
                               const LocatedViolations& reported, Settings* settings) {
  LocatedViolations violations;
  const FieldPlaces own = PlacesOf(line);
  for (const Violation& violation : CheckJob(job, UnreadFields(reported))) {
    LocatedViolation located = Locate(violation, own);
    if (located.place.file.empty()) located = AtOrigin(violation, file, settings);
    // If some settings are in files that were not given, fields without a setting cannot be validated.
    if (located.place.file == file && located.place.line == 0 && settings->incomplete()) continue;
    violations.push_back(std::move(located));
  }
  return violations;
}

// Makes paths absolute. A Megatron configuration does not contain the working directory of the run, so
// relative paths are resolved like those of a spec. A list of files is reported once.
LocatedViolations ResolvePaths(const CommandLine& line, const std::string& file, Settings* settings,
                               v1::JobSpec* job) {
  const char* directory = line.file == "-" ? "the directory that fsdpctl runs in" : "the file's directory";
  LocatedViolations violations;
  std::set<std::string> reported;
  for (const RelativePath& path : MakePathsAbsolute(SpecDirectory(line.file), job)) {
    const Violation made_whole = {"relative_path",
                                  ViolationLevel::kAdjust,
                                  path.field,
                                  absl::StrCat("relative paths are taken from ", directory),
                                  "",
                                  path.written,
                                  path.absolute};
    const Violation unknown = {"path_of_node",
                               ViolationLevel::kError,
                               path.field,
                               absl::StrCat("'", path.written, "' is not a path on the nodes"),
                               "write the absolute path on the nodes, /...",
                               "",
                               ""};
    const Violation& violation = NeedsExpansion(path.written) ? unknown : made_whole;
    LocatedViolation located = AtOrigin(violation, file, settings);
    if (reported.insert(absl::StrCat(violation.rule, " ", located.violation.field)).second)
      violations.push_back(std::move(located));
  }
  return violations;
}

// Sorts by position in the file. Entries without a position come last.
void Sort(LocatedViolations* violations) {
  std::stable_sort(violations->begin(), violations->end(),
                   [](const LocatedViolation& a, const LocatedViolation& b) {
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
  LocatedViolations violations = ReadSettings(*text, file, &settings);
  v1::JobSpec job;
  if (violations.empty()) {
    violations = ConvertRun(&settings, {line.nodes, line.ranks_per_node}, file, &job);
    job.set_name(line.name);
    Append(&violations, ResolvePaths(line, file, &settings, &job));
    Append(&violations, ViolationsOf(job, line, file, violations, &settings));
    Sort(&violations);
  }
  const int code = ReportViolations(violations, console);
  if (code != kExitOk) {
    if (line.output != "table") console->out << Rendered(ToProto(violations), line.output);
    return code;
  }
  console->out << (line.output == "json" ? ToJson(job) : ToYaml(job));
  return code;
}

}  // namespace fsdpd
