// What this node can offer: kind of device, slots (ranks that may run at once) and memory per slot. Decided
// once, at the agent's start, from what was asked for and what is there.
#pragma once

#include <absl/status/statusor.h>
#include <absl/strings/string_view.h>

#include <cstdint>
#include <string>

#include "agent/nvml.h"
#include "proto/fsdpd/v1/job.pb.h"

namespace fsdpd {

struct DeviceOffer {
  v1::Device device = v1::DEVICE_CPU;
  int slots = 0;
  int64_t memory_bytes_per_slot = 0;
};

// What the machine has.
struct MachineFacts {
  int cores = 0;             // That this process may run on.
  int64_t memory_bytes = 0;  // Available now, within the container's limit.
  absl::StatusOr<std::vector<GpuMemory>> gpus = absl::UnavailableError("not probed");
};
MachineFacts ProbeMachine();

// Pure. `asked` is cpu, cuda or auto (cuda when there is a GPU); `slots` 0 takes all: a slot per core or per
// GPU. On cuda the memory per slot is the smallest free memory of the GPUs in use. INVALID_ARGUMENT for a bad
// `asked` or more slots than GPUs; UNAVAILABLE for cuda without a GPU.
absl::StatusOr<DeviceOffer> DecideOffer(absl::string_view asked, int slots, const MachineFacts& machine);

// MemAvailable of /proc/meminfo's text, in bytes; 0 when it is not there.
int64_t ParseMemAvailable(absl::string_view meminfo);

}  // namespace fsdpd
