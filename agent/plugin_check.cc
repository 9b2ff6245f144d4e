#include "agent/plugin_check.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include <algorithm>
#include <filesystem>

namespace fsdpd {
namespace {

namespace fs = std::filesystem;

bool Climbs(const fs::path& path) { return std::find(path.begin(), path.end(), "..") != path.end(); }

// Name by name; `dir` has no slash at its end.
bool LiesIn(const fs::path& file, const fs::path& dir) {
  const auto [in_dir, in_file] = std::mismatch(dir.begin(), dir.end(), file.begin(), file.end());
  return in_dir == dir.end() && in_file != file.end();
}

std::string Outside(const std::string& who, const std::vector<PluginDir>& dirs) {
  const auto given = [](std::string* out, const PluginDir& dir) { *out += dir.given; };
  return absl::StrCat(who, "is not loaded on this node: it lies outside of its agent's --plugin-dir ",
                      absl::StrJoin(dirs, ", ", given));
}

}  // namespace

absl::StatusOr<PluginDir> ResolvePluginDir(const std::string& dir) {
  std::error_code error;
  const fs::path resolved = fs::canonical(dir, error);
  if (error) return absl::InvalidArgumentError(absl::StrCat(dir, ": ", error.message()));
  if (!fs::is_directory(resolved, error))
    return absl::InvalidArgumentError(absl::StrCat(dir, " is no folder"));
  // With a "..", what is written and where it leads may differ.
  fs::path given = Climbs(dir) ? resolved : fs::absolute(dir, error).lexically_normal();
  if (!given.has_filename() && given != given.root_path()) given = given.parent_path();  // "/models/"
  return PluginDir{error ? resolved.string() : given.string(), resolved.string()};
}

std::string WhyNoPlugin(const std::string& path, const std::vector<PluginDir>& dirs) {
  const std::string who = absl::StrCat("model.plugin.path: '", path, "' ");
  if (dirs.empty()) return who + "is not loaded on this node: its agent has no --plugin-dir";
  const fs::path written = fs::path(path).lexically_normal();
  const bool named = !Climbs(path) && std::any_of(dirs.begin(), dirs.end(), [&](const PluginDir& dir) {
    return LiesIn(written, dir.given) || LiesIn(written, dir.resolved);
  });
  if (!named) return Outside(who, dirs);
  std::error_code error;
  const fs::path file = fs::canonical(path, error);
  if (error) return absl::StrCat(who, "cannot be loaded on this node: ", error.message());
  const bool inside =
      std::any_of(dirs.begin(), dirs.end(), [&](const PluginDir& dir) { return LiesIn(file, dir.resolved); });
  return inside ? "" : Outside(who, dirs);
}

}  // namespace fsdpd
