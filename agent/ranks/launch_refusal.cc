#include "agent/ranks/launch_refusal.h"

#include "agent/launch/allowed_paths.h"
#include "agent/ranks/rank_process.h"

namespace fsdpd {

v1::ErrorClass CauseOf(const LaunchRefusal& refusal) {
  v1::ErrorClass fault;
  fault.set_kind(refusal.fault);
  // The next attempt would find the same --plugin-dir and --path-root.
  fault.set_permanent(refusal.fault == v1::ErrorClass::KIND_CONFIGURATION && !refusal.node_only);
  fault.set_node_only(refusal.node_only);
  return fault;
}

LaunchRefusal RefusalOf(const v1::Launch& launch, const NodeUse& use, const std::string& rank_binary,
                        const std::vector<PathRoot>& plugin_dirs, const std::vector<PathRoot>& path_roots) {
  if (const absl::Status status = CheckRankBinary(rank_binary); !status.ok())
    return {std::string(status.message()), v1::ErrorClass::KIND_NODE};
  const std::string why = LaunchError(launch, use);
  if (!why.empty()) return {why};
  // A path that cannot be resolved now may exist later, or on another node.
  LaunchRefusal refusal;
  refusal.fault = v1::ErrorClass::KIND_CONFIGURATION;
  absl::Status status = CheckPlugin(launch.spec().model(), plugin_dirs);
  if (status.ok()) {
    status = CheckPaths(launch.spec(), path_roots);
    if (!absl::IsPermissionDenied(status)) refusal.fault = v1::ErrorClass::KIND_DATA;
  }
  refusal.reason = std::string(status.message());
  refusal.node_only = !absl::IsPermissionDenied(status);
  return refusal;
}

}  // namespace fsdpd
