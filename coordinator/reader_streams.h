// Streams to readers hold a thread each: how many there may be, and how often they look at their client and
// at the coordinator's stop, because the synchronous API cannot wake a handler.
//
// Thread-safe.
#pragma once

#include <absl/status/status.h>
#include <absl/strings/str_cat.h>
#include <absl/time/time.h>

#include <atomic>

namespace fsdpd {

constexpr int kMaxReaderStreams = 512;
constexpr absl::Duration kStreamPoll = absl::Milliseconds(200);

// Counts a stream for its life.
class StreamSlot {
 public:
  explicit StreamSlot(std::atomic<int>* count) : count_(count), number_(++*count) {}
  ~StreamSlot() { --*count_; }
  StreamSlot(const StreamSlot&) = delete;
  StreamSlot& operator=(const StreamSlot&) = delete;
  absl::Status status() const {
    if (number_ <= kMaxReaderStreams) return absl::OkStatus();
    return absl::ResourceExhaustedError(
        absl::StrCat("more than ", kMaxReaderStreams, " watches and log tails"));
  }

 private:
  std::atomic<int>* const count_;
  const int number_;
};

}  // namespace fsdpd
