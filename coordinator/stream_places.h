// Places for open agent streams: a total, and a share per certificate, so that one node cannot use up the
// places of the others. Call order: GiveBack() once for each Take() that returned OK.
//
// Thread-safe.
#pragma once

#include <absl/status/status.h>

#include <map>
#include <string>

#include "base/mutex.h"

namespace fsdpd {

// More than twice the agents that a coordinator is sized for (kMaxWorld in base/limits.h): all may reconnect
// before their old streams are known to be dead.
constexpr int kMaxAgentStreams = 4400;
// Of one node name: the stream in use, and those of reconnects that are not known to be dead yet.
constexpr int kMaxStreamsPerNode = 8;

class StreamPlaces {
 public:
  // `owner`: whose share it is. RESOURCE_EXHAUSTED if the owner has `limit` open streams, or all have
  // kMaxAgentStreams.
  absl::Status Take(const std::string& owner, int limit);
  void GiveBack(const std::string& owner);

 private:
  Mutex mutex_;
  int taken_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<std::string, int> by_owner_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace fsdpd
