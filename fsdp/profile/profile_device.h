// Measurement of the device profile that predictions use (fsdp/plan/predict/device_profile.h), on this node:
// ranks are threads, each with its own device or a part of the CPU, over the transport that jobs use (NCCL;
// TCP over loopback).
//
// Values that cannot be measured on one node are taken from the shipped profile of the device and listed in
// `notes`: links between nodes, peak rates, and with a single rank all links.
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
  int number = 0;  // 1-based.
  int of = 0;
  std::string what;
};

struct ProfileOptions {
  DeviceKind device = DeviceKind::kCpu;
  int ranks = 0;
  ComputeSizes compute;
  LinkSizes links;
  int runs = 0;
  // Called before each stage, in order, by one thread at a time; may be empty.
  std::function<void(const Stage&)> on_stage = {};
};

// Sizes that take a few seconds in total. Two ranks on a CPU; all devices with CUDA.
ProfileOptions DefaultProfileOptions(DeviceKind device);

struct MeasuredProfile {
  DeviceProfile profile;
  std::vector<std::string> notes;  // Notes for users.
};

// REQUIRES: sizes and runs are positive. FAILED_PRECONDITION if there are fewer devices than ranks; INTERNAL
// if a result was wrong; RESOURCE_EXHAUSTED if memory was insufficient.
absl::StatusOr<MeasuredProfile> ProfileDevice(const ProfileOptions& options);

}  // namespace fsdpd
