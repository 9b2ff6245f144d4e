// Whether the memory of a rank's GPU is free again once its processes are gone: the driver gives it back when
// it comes to it, and a process that escaped (process_tree.h) may hold it. It is free when the card has no
// more in use than before the launch, as read afterwards.
//
//   FreedMemory(before the launch) -> Gone, once -> Look, until it is settled -> AddTo
//
// Thread safety: none.
#pragma once

#include <absl/time/time.h>

#include <cstdint>
#include <functional>
#include <optional>

#include "proto/fsdpd/v1/agent.pb.h"

namespace fsdpd {

// In use on a GPU, as read after a time; empty where it was not, or cannot be.
using ReadUsedBytes = std::function<std::optional<int64_t>(int device, absl::Time since)>;

class FreedMemory {
 public:
  // For how long a rank that is gone still takes up its slot.
  static constexpr absl::Duration kLongest = absl::Seconds(5);
  // More or less than that is the driver's, or a process of somebody who only looks.
  static constexpr int64_t kNoise = int64_t{256} << 20;

  FreedMemory() = default;  // Of no GPU: settled once it is gone.
  FreedMemory(int device, std::optional<int64_t> before) : device_(device), before_(before) {}

  // Its last process is gone, as of `now`.
  void Gone(absl::Time now) { gone_ = now; }
  void Look(const ReadUsedBytes& used, absl::Time now);
  bool settled() const { return settled_; }

  // Nothing, where nothing is known of before. REQUIRES: settled.
  void AddTo(v1::FreedMemory* told) const;

 private:
  int device_ = 0;
  std::optional<int64_t> before_;
  absl::Time gone_ = absl::InfiniteFuture();
  std::optional<int64_t> more_;  // In use now than before.
  bool settled_ = false;
};

}  // namespace fsdpd
