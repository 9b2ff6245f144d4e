// Whose tokens the coordinator knows: a file of one line for each, NAME ROLE HASH and perhaps PROJECT, with
// '#' comments, that an operator edits while the coordinator runs. `fsdpctl token new` makes a token and its
// line.
//
// The file is looked at with every call, so a line that is taken out counts at once; streams that are open go
// on. A file with a fault leaves what was read before in use (watched_file.h).
#pragma once

#include <absl/status/statusor.h>
#include <absl/strings/string_view.h>
#include <absl/time/time.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/principal.h"
#include "coordinator/watched_file.h"

namespace fsdpd {

struct KnownToken {
  Principal person;
  std::string hash;
};

// INVALID_ARGUMENT with the line of the first fault. Names may stand twice: while a token is replaced by
// another.
absl::StatusOr<std::vector<KnownToken>> ParseTokens(absl::string_view text);

// Thread-safe.
class TokenStore {
 public:
  // Fails for a file that cannot be read, or has a fault.
  static absl::StatusOr<std::unique_ptr<TokenStore>> Open(const std::string& path, Clock* clock);

  // Whose it is; nobody's is no person's.
  std::optional<Principal> Find(absl::string_view token);
  // Whether the file cannot be read or has a fault, so that tokens which it revokes may still be valid.
  bool Stale() { return !file_.Refresh(); }

 private:
  using Tokens = std::shared_ptr<const std::vector<KnownToken>>;
  TokenStore(const std::string& path, Clock* clock);
  absl::Status Take(const std::string& path, const std::string& text);

  Mutex mutex_;
  Tokens tokens_ ABSL_GUARDED_BY(mutex_);
  WatchedFile file_;
};

}  // namespace fsdpd
