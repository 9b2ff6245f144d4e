// Limits of open agent streams: in total, and per certificate, so that one node cannot use up the streams of
// the others. Call order: Release() once for each Take() that returned OK.
//
// Thread-safe.
#pragma once

#include <absl/status/status.h>

#include <map>
#include <string>

#include "base/mutex.h"

namespace fsdpd {

// More than twice the number of agents that a coordinator is sized for (kMaxWorld in base/limits.h), because
// all may reconnect before their old streams are known to be dead.
constexpr int kMaxAgentStreams = 4400;
// Per node name: the stream in use, and those of reconnects that are not yet known to be dead.
constexpr int kMaxStreamsPerNode = 8;

class StreamQuota {
 public:
  // Reserves one stream of `owner`. RESOURCE_EXHAUSTED if the owner has `limit` open streams, or all owners
  // together have kMaxAgentStreams.
  absl::Status Take(const std::string& owner, int limit);
  void Release(const std::string& owner);

 private:
  Mutex mutex_;
  int taken_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<std::string, int> by_owner_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace fsdpd
