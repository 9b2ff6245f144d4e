// HostArena: preallocated host memory for copies to and from the device: checkpoint snapshots, batches, and
// offloaded state. All pages are populated when Make returns, so a job does not run out of host memory
// half-way, and for CUDA they are pinned, so copies overlap with the device's work.
//
// Errors: RESOURCE_EXHAUSTED, with the requested and the available size, before the memory of the node or of
// a cgroup with a limit (a pod, a service, a Slurm job) is used up. Ranks that start at the same time only
// see what the others have populated so far.
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
  // `what`: the purpose, in the plural; errors begin with it. `root`: prefix of /sys and /proc/self, for
  // tests.
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

// A host arena that is populated in the background, from construction on, for memory that is needed after
// other work, such as reading a checkpoint. Get() waits and pins it, which blocks CUDA calls of other
// threads.
//
// Call order: Get() at most once. Without it, the destructor stops populating and waits. Not thread-safe.
// Errors of Get(): those of HostArena::Make.
class HostArenaFuture {
 public:
  HostArenaFuture(int64_t bytes, DeviceKind device, const char* what);  // `what` must outlive it.
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
