#include "agent/launch/launch_check.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>

#include <algorithm>

#include "agent/launch/attempt.h"
#include "base/limits.h"
#include "base/spec_text/rank_env.h"

namespace fsdpd {
namespace {

std::string DevicesError(const v1::Launch& launch, const NodeUse& use) {
  if (launch.devices_size() != launch.ranks()) {
    return absl::StrFormat("devices: wrong number (got %d, want %d)", launch.devices_size(), launch.ranks());
  }
  std::set<int> busy(use.devices.begin(), use.devices.end());
  for (const int device : launch.devices()) {
    if (device < 0 || device >= use.slots)
      return absl::StrFormat("device %d: not on this node (got %d, want 0..%d)", device, device,
                             use.slots - 1);
    if (!busy.insert(device).second) return absl::StrFormat("device %d is not free", device);
  }
  return "";
}

// Submit checks this too, but against what agents reported at that time; the owner of the node decides which
// variables are allowed.
std::string EnvError(const v1::JobSpec& spec, const std::set<std::string>& allowed) {
  for (int i = 0; i < spec.env_size(); ++i) {
    const v1::Variable& variable = spec.env(i);
    std::string why = WhyNoEnvName(variable.name());
    if (why.empty()) why = WhyReservedEnv(variable.name(), variable.value());
    if (why.empty() && !WhyNeedsAllowEnv(variable.name()).empty() && !AllowsEnv(allowed, variable.name())) {
      why = absl::StrCat("is not allowed on this node: its agent has no --allow-env ", variable.name());
    }
    if (!why.empty()) return absl::StrCat("env[", i, "].name: '", variable.name(), "' ", why);
    if (why = WhyNoEnvValue(variable.value()); !why.empty()) return absl::StrCat("env[", i, "].value: ", why);
  }
  return "";
}

}  // namespace

std::string LaunchError(const v1::Launch& launch, const NodeUse& use) {
  if (const absl::Status status = CheckJobId(launch.job_id()); !status.ok())
    return std::string(status.message());
  if (launch.attempt() < 0 || launch.first_rank() < 0 || launch.ranks() < 1 ||
      launch.world_size() > kMaxWorld || launch.first_rank() > launch.world_size() - launch.ranks()) {
    return absl::StrFormat("invalid launch (attempt %d, ranks %d + %d, world size %d)", launch.attempt(),
                           launch.first_rank(), launch.ranks(), launch.world_size());
  }
  if (launch.attempt() <= use.newest_attempt.value_or(-1)) {
    return absl::StrFormat("attempt %d is stale: attempt %d was already here", launch.attempt(),
                           *use.newest_attempt);
  }
  const int free = use.slots - static_cast<int>(use.devices.size());
  if (launch.ranks() > free) {
    return absl::StrFormat("%d ranks need as many slots, and %d of %d are free", launch.ranks(), free,
                           use.slots);
  }
  const std::string devices = use.device == v1::DEVICE_CUDA ? DevicesError(launch, use) : "";
  return devices.empty() ? EnvError(launch.spec(), use.allowed_env) : devices;
}

}  // namespace fsdpd
