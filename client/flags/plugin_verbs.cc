#include "client/flags/plugin_verbs.h"

#include <absl/strings/ascii.h>
#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_split.h>
#include <absl/strings/strip.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <system_error>

#include "base/spec_text/located_violation.h"

namespace fsdpd {
namespace {

constexpr absl::string_view kPrefix = "fsdpctl-";

struct OwnVerb {
  const char* name;
  const char* about;
  const char* install;
};
constexpr OwnVerb kOwnVerbs[] = {
    {"data", "create and inspect token files", "pip install 'CLONE/clients/python[data]'"},
    {"model", "export PyTorch models", "pip install 'CLONE/clients/python[model]'"},
};

bool CanBeVerb(absl::string_view name) {
  return !name.empty() && absl::ascii_isalnum(name.front()) &&
         std::all_of(name.begin(), name.end(), [](char each) {
           return absl::ascii_islower(each) || absl::ascii_isdigit(each) || each == '-' || each == '_';
         });
}

bool IsProgram(const std::filesystem::path& path) {
  std::error_code error;
  return std::filesystem::is_regular_file(path, error) && access(path.c_str(), X_OK) == 0;
}

std::vector<std::filesystem::path> Directories(absl::string_view path) {
  std::vector<std::filesystem::path> directories;
  for (const absl::string_view each : absl::StrSplit(path, ':', absl::SkipEmpty())) {
    if (each.front() == '/') directories.emplace_back(std::string(each));
  }
  return directories;
}

}  // namespace

std::string PluginProgram(absl::string_view name, absl::string_view path) {
  if (!CanBeVerb(name)) return "";
  for (const std::filesystem::path& directory : Directories(path)) {
    const std::filesystem::path program = directory / absl::StrCat(kPrefix, name);
    if (IsProgram(program)) return program.string();
  }
  return "";
}

std::vector<PluginVerb> PluginVerbs(const std::vector<std::string>& commands, absl::string_view path) {
  std::map<std::string, std::string> found;
  for (const std::filesystem::path& directory : Directories(path)) {
    std::error_code error;
    // A directory that is missing, or that fails while it is read, is skipped.
    for (std::filesystem::directory_iterator at(directory, error), end; !error && at != end;
         at.increment(error)) {
      const std::string file = at->path().filename().string();
      absl::string_view name = file;
      if (!absl::ConsumePrefix(&name, kPrefix) || !CanBeVerb(name) || !IsProgram(at->path())) continue;
      if (std::find(commands.begin(), commands.end(), name) != commands.end()) continue;
      found.emplace(name, at->path().string());
    }
  }
  std::vector<PluginVerb> verbs;
  for (const auto& [name, program] : found) verbs.push_back({name, program});
  return verbs;
}

std::string InstallHint(absl::string_view name) {
  for (const OwnVerb& verb : kOwnVerbs) {
    if (name == verb.name) return absl::StrCat(verb.about, ": ", verb.install);
  }
  return "";
}

std::string PluginHelp(const std::vector<PluginVerb>& verbs) {
  std::string lines;
  const auto add = [&](absl::string_view name, absl::string_view about) {
    const std::string space(name.size() < 31 ? 32 - name.size() : 1, ' ');
    absl::StrAppend(&lines, "  ", name, space, about, "\n");
  };
  for (const PluginVerb& verb : verbs) add(verb.name, Escaped(verb.program));
  for (const OwnVerb& own : kOwnVerbs) {
    const bool there = std::any_of(verbs.begin(), verbs.end(),
                                   [&](const PluginVerb& verb) { return verb.name == own.name; });
    if (!there) add(own.name, absl::StrCat("not installed: ", own.about, "; ", own.install));
  }
  return lines.empty() ? "" : absl::StrCat("\nPlugins in PATH:\n", lines);
}

}  // namespace fsdpd
