#include <absl/strings/str_cat.h>
#include <absl/strings/str_split.h>
#include <absl/strings/strip.h>

#include <filesystem>

#include "base/process/error_line.h"
#include "client/commands/child_process.h"
#include "client/commands/commands.h"
#include "client/commands/profile_file.h"
#include "client/connect/outcome.h"
#include "client/text/stage_screen.h"
#include "fsdp/plan/predict/device_profile.h"

namespace fsdpd {
namespace {

// In the directory of fsdpctl when installed. In Bazel's output tree the two binaries are in sibling
// directories.
std::string DefaultRankBinary() {
  std::error_code ignored;
  const std::filesystem::path directory =
      std::filesystem::read_symlink("/proc/self/exe", ignored).parent_path();
  const std::filesystem::path installed = directory / "fsdpd-rank";
  if (std::filesystem::exists(installed, ignored)) return installed;
  return directory.parent_path() / "fsdp" / "fsdpd-rank";
}

std::vector<std::string> Arguments(const CommandLine& line) {
  std::vector<std::string> arguments{line.rank_binary.empty() ? DefaultRankBinary() : line.rank_binary,
                                     "--profile-device", line.device};
  if (line.ranks > 0) {
    arguments.push_back("--ranks");
    arguments.push_back(absl::StrCat(line.ranks));
  }
  return arguments;
}

int Fail(Console* console, ExitCode code, const std::string& message) {
  console->err << "fsdpctl: " << WithErrorId(message, "PROGRAM_FAILED") << "\n";
  return code;
}

// The child's own error message has been forwarded already.
int FailOfChild(Console* console, const std::string& binary, int code) {
  const std::string how = code < 0 ? absl::StrCat("by signal ", -code) : absl::StrCat("with code ", code);
  return Fail(console, code == kExitUsage ? kExitUsage : kExitFailed,
              absl::StrCat("no profile: ", binary, " exited ", how));
}

std::string Yaml(const DeviceProfile& profile) {
  // A flat JSON object becomes block YAML without its braces and commas.
  std::string text = ToJson(profile), yaml;
  for (const absl::string_view row : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    if (row == "{" || row == "}") continue;
    absl::StrAppend(&yaml, absl::StripSuffix(absl::StripPrefix(row, "  "), ","), "\n");
  }
  return yaml;
}

}  // namespace

int RunProfileCommand(const CommandLine& line, Console* console) {
  const std::vector<std::string> arguments = Arguments(line);
  StageScreen screen(console);
  const absl::StatusOr<ChildResult> child =
      RunChild(arguments, console->interrupt, [&](absl::string_view chunk) { screen.Take(chunk); });
  screen.End();
  if (absl::IsCancelled(child.status())) return kExitInterrupted;
  if (!child.ok()) {
    return Fail(
        console, kExitUsage,
        absl::StrCat(child.status().message(), "; set the path of fsdpd-rank with --rank-binary PATH"));
  }
  if (child->exit_code != 0) return FailOfChild(console, arguments[0], child->exit_code);
  // Do not print a profile that `plan --profile` would reject.
  const ProfileText profile = ParseProfile(child->output, arguments[0]);
  if (ReportViolations(profile.violations, console) != kExitOk) {
    return Fail(console, kExitFailed,
                absl::StrCat(arguments[0], " did not print a valid profile [INVALID_PROFILE]"));
  }
  console->out << (line.output == "yaml" ? Yaml(profile.profile) : child->output);
  return kExitOk;
}

}  // namespace fsdpd
