// Check that the GPU memory of a rank is free again after its processes are gone. The driver frees memory
// asynchronously, and a process that escaped the process tree (process_tree.h) may hold some. The memory
// counts as freed when the GPU has at most kNoise more in use than before the launch, as read after the
// processes were gone.
//
//   FreedMemory(used before the launch) -> Gone, once -> Poll, until settled() -> AddTo
//
// Not thread-safe.
#pragma once

#include <absl/time/time.h>

#include <cstdint>
#include <functional>
#include <optional>

#include "proto/fsdpd/v1/agent.pb.h"

namespace fsdpd {

// Returns the bytes in use on a GPU as read after `since`; empty if they were not read since, or cannot be.
using ReadUsedBytes = std::function<std::optional<int64_t>(int device, absl::Time since)>;

class FreedMemory {
 public:
  // Longest time that a rank keeps its slot after its processes are gone.
  static constexpr absl::Duration kLongest = absl::Seconds(5);
  // Tolerance for the driver and for short-lived processes of other users, such as nvidia-smi.
  static constexpr int64_t kNoise = int64_t{256} << 20;

  FreedMemory() = default;  // No GPU: settled once the rank is gone.
  FreedMemory(int device, std::optional<int64_t> before) : device_(device), before_(before) {}

  // The last process of the rank is gone as of `now`.
  void Gone(absl::Time now) { gone_ = now; }
  void Poll(const ReadUsedBytes& used, absl::Time now);
  bool settled() const { return settled_; }

  // Adds the result. No-op if the use before the launch is unknown. REQUIRES: settled().
  void AddTo(v1::FreedMemory* result) const;

 private:
  int device_ = 0;
  std::optional<int64_t> before_;
  absl::Time gone_ = absl::InfiniteFuture();
  std::optional<int64_t> more_;  // Increase in use since before the launch.
  bool settled_ = false;
};

}  // namespace fsdpd
