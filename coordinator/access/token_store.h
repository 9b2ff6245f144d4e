// Tokens that the coordinator accepts: a file with one line NAME ROLE HASH [PROJECT] per token, and '#'
// comments. An operator edits it while the coordinator runs. `fsdpctl token new` creates a token and its
// line.
//
// Every call checks the file, so removing a line takes effect immediately for new calls; open streams
// continue. If the file becomes invalid, its last valid contents stay in use (watched_file.h).
#pragma once

#include <absl/status/statusor.h>
#include <absl/strings/string_view.h>
#include <absl/time/time.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/api/principal.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "coordinator/access/watched_file.h"

namespace fsdpd {

struct KnownToken {
  Principal principal;
  std::string hash;
};

// INVALID_ARGUMENT names the first invalid line. A name may occur twice, while a token is being rotated.
absl::StatusOr<std::vector<KnownToken>> ParseTokens(absl::string_view text);

// Thread-safe.
class TokenStore {
 public:
  // Fails for a file that cannot be read or is invalid.
  static absl::StatusOr<std::unique_ptr<TokenStore>> Open(const std::string& path, Clock* clock);

  // Returns the token's principal, or nothing for an unknown token.
  std::optional<Principal> Find(absl::string_view token);
  // Whether the file cannot be read or is invalid, so that tokens which it revokes may still be accepted.
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
