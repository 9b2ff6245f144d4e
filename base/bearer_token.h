// The tokens by which people are known: 256 random bits each, so that a hash without salt or stretching says
// nothing of them. What a coordinator keeps is the hash; the token itself is in its owner's file alone.
#pragma once

#include <absl/strings/string_view.h>

#include <string>

namespace fsdpd {

// "fsdpd_" and 64 hex digits: secret scanners and people tell what it is.
std::string NewBearerToken();

// "sha256:" and 64 hex digits.
std::string HashOfToken(absl::string_view token);

// What HashOfToken may have made.
bool IsTokenHash(absl::string_view text);

// In a time that does not hang on where they differ.
bool SameHash(absl::string_view a, absl::string_view b);

}  // namespace fsdpd
