// What a CUDA device says of itself.
#pragma once

#include <absl/status/statusor.h>

#include <string>

namespace fsdpd {

struct DeviceFacts {
  std::string name;
  double memory_bytes = 0;  // Free now: what a job may use.
};

// FAILED_PRECONDITION when there is no such device, and in a binary built without --config=cuda.
absl::StatusOr<DeviceFacts> DescribeCudaDevice(int index);

}  // namespace fsdpd
