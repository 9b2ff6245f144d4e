// Rate limit of log messages that may occur at any rate: the first of each cause immediately, then one per
// minute with the number of suppressed ones.
//
// Thread-safe.
#pragma once

#include <absl/time/time.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "base/mutex.h"

namespace fsdpd {

constexpr absl::Duration kReportInterval = absl::Minutes(1);
// Causes may contain data from the network: beyond this number, all others share one cause.
constexpr size_t kMaxRepeatedCauses = 64;

class Repeats {
 public:
  // Returns the number of suppressed messages of the cause since the last one; empty if this one is
  // suppressed too.
  std::optional<int64_t> Report(const std::string& cause, absl::Time now);

 private:
  struct Reported {
    absl::Time last;
    int64_t since = 0;
  };
  Mutex mutex_;
  std::map<std::string, Reported> reported_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace fsdpd
