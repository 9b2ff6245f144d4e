// Measures the device profile that predictions are made from (fsdp/plan/predict/device_profile.h), on this
// node: ranks as threads, each on a device of its own or on a share of the CPU, over the transport that jobs
// use (NCCL; TCP over loopback).
//
// What cannot be measured on one node comes from the shipped profile of the device and is named in `notes`:
// links between nodes, peaks, and with one rank all links.
#pragma once

#include <absl/status/statusor.h>

#include <functional>
#include <string>
#include <vector>

#include "fsdp/plan/predict/device_profile.h"
#include "fsdp/profile/compute_rates.h"
#include "fsdp/profile/link_rates.h"

namespace fsdpd {

struct Stage {
  int number = 0;  // From 1.
  int of = 0;
  std::string what;
};

struct ProfileOptions {
  DeviceKind device = DeviceKind::kCpu;
  int ranks = 0;
  ComputeSizes compute;
  LinkSizes links;
  int runs = 0;
  // Called before each stage, in order and by one thread at a time; none by default.
  std::function<void(const Stage&)> on_stage = {};
};

// Sizes that take a few seconds in all. Two ranks on CPU; every device on CUDA.
ProfileOptions DefaultProfileOptions(DeviceKind device);

struct MeasuredProfile {
  DeviceProfile profile;
  std::vector<std::string> notes;  // For whoever reads it.
};

// REQUIRES: sizes and runs above 0. FAILED_PRECONDITION when there are fewer devices than ranks; INTERNAL
// when a result was wrong; RESOURCE_EXHAUSTED when memory was not enough.
absl::StatusOr<MeasuredProfile> ProfileDevice(const ProfileOptions& options);

}  // namespace fsdpd
