// Store: rendezvous of the ranks of one attempt, a small map from keys to bytes. Values are written once; a
// reader blocks until its key exists. Attempts do not share keys.
//
// Thread-safe. Errors: DEADLINE_EXCEEDED if the key was not set in time, UNAVAILABLE if the store is gone,
// ALREADY_EXISTS for a key that was set to a different value.
#pragma once

#include <absl/status/statusor.h>
#include <absl/time/time.h>

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "base/mutex.h"

namespace fsdpd {

class Store {
 public:
  virtual ~Store() = default;
  virtual absl::Status Set(const std::string& key, const std::string& value) = 0;
  virtual absl::StatusOr<std::string> Get(const std::string& key, absl::Duration timeout) = 0;
};

// Gets a value that `rank` sets; on timeout, the error names that rank.
absl::StatusOr<std::string> GetFrom(Store* store, int64_t rank, const std::string& key,
                                    absl::Duration timeout);

// A part of another store: all keys get a prefix. `store` must outlive it.
class PrefixStore : public Store {
 public:
  PrefixStore(Store* store, std::string prefix) : store_(store), prefix_(std::move(prefix)) {}
  absl::Status Set(const std::string& key, const std::string& value) override {
    return store_->Set(prefix_ + key, value);
  }
  absl::StatusOr<std::string> Get(const std::string& key, absl::Duration timeout) override {
    return store_->Get(prefix_ + key, timeout);
  }

 private:
  Store* const store_;
  const std::string prefix_;
};

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
