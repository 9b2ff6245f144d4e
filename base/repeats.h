// How often what may come at any rate is told: the first of each cause at once, and then one a minute, with
// how many others there were since.
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

constexpr absl::Duration kToldEvery = absl::Minutes(1);
// Causes are of what strangers send: beyond these all are one.
constexpr size_t kMaxToldCauses = 64;

class Repeats {
 public:
  // How many of the cause were not told since the one that was told last; nothing where this one is not to be
  // told either.
  std::optional<int64_t> Tell(const std::string& cause, absl::Time now);

 private:
  struct Told {
    absl::Time last;
    int64_t since = 0;
  };
  Mutex mutex_;
  std::map<std::string, Told> told_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace fsdpd
