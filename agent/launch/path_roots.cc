#include "agent/launch/path_roots.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include <algorithm>
#include <filesystem>

#include "base/dot_dot.h"

namespace fsdpd {
namespace {

namespace fs = std::filesystem;

// The nearest existing ancestor of `path`, which may be a dangling symlink. Components below it do not exist,
// so they contain no symlinks.
fs::path NearestOf(fs::path path, std::error_code* error) {
  while (fs::symlink_status(path, *error).type() == fs::file_type::not_found && path.has_relative_path())
    path = path.parent_path();
  return path;
}

}  // namespace

absl::StatusOr<PathRoot> ResolvePathRoot(const std::string& dir) {
  std::error_code error;
  const fs::path resolved = fs::canonical(dir, error);
  if (error) return absl::InvalidArgumentError(absl::StrCat(dir, ": ", error.message()));
  if (!fs::is_directory(resolved, error))
    return absl::InvalidArgumentError(absl::StrCat(dir, ": not a directory"));
  // With "..", the text and the target may differ.
  fs::path given = HasDotDot(dir) ? resolved : fs::absolute(dir, error).lexically_normal();
  if (!given.has_filename() && given != given.root_path()) given = given.parent_path();  // "/models/"
  return PathRoot{error ? resolved.string() : given.string(), resolved.string()};
}

std::string NamesOf(const std::vector<PathRoot>& roots) {
  return absl::StrJoin(roots, ", ", [](std::string* out, const PathRoot& root) { *out += root.given; });
}

absl::StatusOr<bool> LiesBelow(const std::string& path, const std::vector<PathRoot>& roots) {
  const std::string written = fs::path(path).lexically_normal();
  const bool named = !HasDotDot(path) && std::any_of(roots.begin(), roots.end(), [&](const PathRoot& root) {
    return IsBelow(written, root.given) || IsBelow(written, root.resolved);
  });
  if (!named) return false;
  std::error_code error;
  const fs::path nearest = NearestOf(written, &error);
  const std::string resolved = error ? fs::path() : fs::canonical(nearest, error);
  if (error) return absl::UnavailableError(error.message());
  return std::any_of(roots.begin(), roots.end(),
                     [&](const PathRoot& root) { return IsBelow(resolved, root.resolved); });
}

}  // namespace fsdpd
