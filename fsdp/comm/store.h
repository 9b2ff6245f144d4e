// The rendezvous: a small map of keys to bytes that the ranks of one attempt share to find each other. Values
// are written once; a reader waits until its key is there. Keys of different attempts never meet.
//
// Thread-safe. Errors: DEADLINE_EXCEEDED when the key did not come in time, UNAVAILABLE when the store is
// gone, ALREADY_EXISTS for a key set twice with different values.
#pragma once

#include <absl/status/statusor.h>
#include <absl/time/time.h>

#include <cstdint>
#include <map>
#include <string>

#include "base/mutex.h"

namespace fsdpd {

class Store {
 public:
  virtual ~Store() = default;
  virtual absl::Status Set(const std::string& key, const std::string& value) = 0;
  virtual absl::StatusOr<std::string> Get(const std::string& key, absl::Duration timeout) = 0;
};

// A value that `rank` sets; when it does not come in time, the error names that rank.
absl::StatusOr<std::string> GetFrom(Store* store, int64_t rank, const std::string& key,
                                    absl::Duration timeout);

// For ranks that are threads of one process.
class LocalStore : public Store {
 public:
  absl::Status Set(const std::string& key, const std::string& value) override;
  absl::StatusOr<std::string> Get(const std::string& key, absl::Duration timeout) override;

 private:
  Mutex mutex_;
  CondVar changed_;
  std::map<std::string, std::string> values_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace fsdpd
