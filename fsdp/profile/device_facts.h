// Properties of a CUDA device.
#pragma once

#include <absl/status/statusor.h>

#include <string>

namespace fsdpd {

struct DeviceFacts {
  std::string name;
  double memory_bytes = 0;  // Free at the time of the call: what a job can use.
};

// FAILED_PRECONDITION if there is no such device, and in builds without --config=cuda.
absl::StatusOr<DeviceFacts> DescribeCudaDevice(int index);

}  // namespace fsdpd
