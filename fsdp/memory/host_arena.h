// Host memory that is there from the start, for what a rank copies from its device and to it: snapshots of
// checkpoints, batches, and state that is offloaded. Its pages are real when Make returns, so nothing runs
// out of memory in the middle of a job, and for CUDA they are pinned, so that copies run beside the device's
// work.
//
// Errors: RESOURCE_EXHAUSTED with the bytes asked for and those available, before the memory of a node, or of
// a control group with a limit (a pod, a service, a Slurm job), is used up. Ranks that start at the same time
// see what the others have taken so far only.
#pragma once

#include <absl/status/statusor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "fsdp/plan/spec/spec.h"

namespace fsdpd {

class HostArena {
 public:
  // `what` it is for, in the plural: the error begins with it. `root` stands before /sys and what is read of
  // /proc/self, for tests.
  static absl::StatusOr<std::unique_ptr<HostArena>> Make(int64_t bytes, DeviceKind device, const char* what,
                                                         const std::string& root = "");
  ~HostArena();
  HostArena(const HostArena&) = delete;
  HostArena& operator=(const HostArena&) = delete;

  std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

 private:
  explicit HostArena(int64_t bytes) : bytes_(bytes) {}

  const int64_t bytes_;
  std::byte* data_ = nullptr;
  bool pinned_ = false;
};

}  // namespace fsdpd
