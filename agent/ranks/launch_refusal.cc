#include "agent/ranks/launch_refusal.h"

#include "agent/launch/allowed_paths.h"
#include "agent/launch/plugin_check.h"
#include "agent/ranks/rank_process.h"

namespace fsdpd {

v1::ErrorClass CauseOf(const LaunchRefusal& refusal) {
  v1::ErrorClass fault;
  fault.set_kind(refusal.fault);
  // The next attempt would find the same --plugin-dir and --path-root.
  fault.set_permanent(refusal.fault == v1::ErrorClass::KIND_CONFIGURATION);
  // Another node may resolve the path.
  fault.set_node_only(refusal.fault == v1::ErrorClass::KIND_DATA);
  return fault;
}

LaunchRefusal RefusalOf(const v1::Launch& launch, const NodeUse& use, const std::string& rank_binary,
                        const std::vector<PathRoot>& plugin_dirs, const std::vector<PathRoot>& path_roots) {
  if (const absl::Status status = CheckRankBinary(rank_binary); !status.ok())
    return {std::string(status.message()), v1::ErrorClass::KIND_NODE};
  const std::string why = LaunchError(launch, use);
  if (!why.empty()) return {why};
  const std::string no_plugin = PluginError(launch.spec().model(), plugin_dirs);
  if (!no_plugin.empty()) return {no_plugin, v1::ErrorClass::KIND_CONFIGURATION};
  const absl::Status paths = CheckPaths(launch.spec(), path_roots);
  // A path that cannot be resolved now may exist later, so this is not a configuration error.
  return {std::string(paths.message()),
          absl::IsPermissionDenied(paths) ? v1::ErrorClass::KIND_CONFIGURATION : v1::ErrorClass::KIND_DATA};
}

}  // namespace fsdpd
