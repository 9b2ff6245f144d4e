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

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>

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
  friend class HostArenaFuture;

  explicit HostArena(int64_t bytes) : bytes_(bytes) {}

  // Returns CANCELLED once `stopped` is set.
  static absl::StatusOr<std::unique_ptr<HostArena>> Populate(int64_t bytes, const char* what,
                                                             const std::string& root,
                                                             const std::atomic<bool>& stopped);
  absl::Status Pin(DeviceKind device);

  const int64_t bytes_;
  std::byte* data_ = nullptr;
  bool pinned_ = false;
};

// A host arena that is populated in the background, from construction on: for memory that is needed only
// after other work, such as reading a checkpoint. Get() pins it, which blocks the CUDA calls of other
// threads.
//
// Call order: Get() at most once. Without it, the destructor stops populating and waits for that. Thread
// safety: none. Errors of Get(): HostArena::Make's.
class HostArenaFuture {
 public:
  HostArenaFuture(int64_t bytes, DeviceKind device, const char* what);  // `what` outlives it.
  ~HostArenaFuture();
  HostArenaFuture(const HostArenaFuture&) = delete;
  HostArenaFuture& operator=(const HostArenaFuture&) = delete;

  absl::StatusOr<std::unique_ptr<HostArena>> Get();

 private:
  const DeviceKind device_;
  std::atomic<bool> stopped_{false};
  absl::StatusOr<std::unique_ptr<HostArena>> arena_;
  std::thread thread_;  // Last: it uses all of the above.
};

}  // namespace fsdpd
