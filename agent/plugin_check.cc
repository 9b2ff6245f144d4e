#include "agent/plugin_check.h"

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include <algorithm>
#include <filesystem>

namespace fsdpd {

absl::StatusOr<std::string> ResolvePluginDir(const std::string& dir) {
  std::error_code error;
  const std::filesystem::path resolved = std::filesystem::canonical(dir, error);
  if (error) return absl::InvalidArgumentError(absl::StrCat(dir, ": ", error.message()));
  if (!std::filesystem::is_directory(resolved, error))
    return absl::InvalidArgumentError(absl::StrCat(dir, " is no folder"));
  return resolved.string();
}

std::string WhyNoPlugin(const std::string& path, const std::vector<std::string>& dirs) {
  const std::string who = absl::StrCat("model.plugin.path: '", path, "' ");
  if (dirs.empty()) return who + "is not loaded on this node: its agent has no --plugin-dir";
  std::error_code error;
  const std::string file = std::filesystem::canonical(path, error).string();
  if (error) return absl::StrCat(who, "cannot be loaded on this node: ", error.message());
  const bool inside = std::any_of(dirs.begin(), dirs.end(), [&](const std::string& dir) {
    return absl::StartsWith(file, dir == "/" ? dir : absl::StrCat(dir, "/"));
  });
  if (inside) return "";
  return absl::StrCat(who, "is not loaded on this node: it lies outside of its agent's --plugin-dir ",
                      absl::StrJoin(dirs, ", "));
}

}  // namespace fsdpd
