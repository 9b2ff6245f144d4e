#include "agent/launch/plugin_check.h"

#include <absl/strings/str_cat.h>
#include <errno.h>
#include <string.h>
#include <unistd.h>

namespace fsdpd {

absl::Status CheckPlugin(const v1::Model& model, const std::vector<PathRoot>& dirs) {
  if (!model.has_plugin() && !model.has_package()) return absl::OkStatus();
  const std::string& path = model.has_package() ? model.package().path() : model.plugin().path();
  const std::string field =
      absl::StrCat(model.has_package() ? "model.package.path: '" : "model.plugin.path: '", path, "' ");
  if (dirs.empty())
    return absl::PermissionDeniedError(field + "is not loaded on this node: its agent has no --plugin-dir");
  const absl::StatusOr<bool> below = LiesBelow(path, dirs);
  const std::string cannot = field + "cannot be loaded on this node: ";
  if (!below.ok()) return absl::UnavailableError(absl::StrCat(cannot, below.status().message()));
  if (!*below) {
    return absl::PermissionDeniedError(
        absl::StrCat(field, "is not loaded on this node: it is outside of --plugin-dir ", NamesOf(dirs)));
  }
  if (access(path.c_str(), R_OK) == 0) return absl::OkStatus();
  return absl::UnavailableError(cannot + strerror(errno));
}

}  // namespace fsdpd
