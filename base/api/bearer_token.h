// Bearer tokens of users: 256 random bits each, so an unsalted SHA-256 hash reveals nothing about them. A
// coordinator stores the hash only; the token exists only in the file of its owner.
#pragma once

#include <absl/strings/string_view.h>

#include <string>

namespace fsdpd {

// "fsdpd_" and 64 hex digits: the prefix identifies it for secret scanners and users.
std::string NewBearerToken();

// "sha256:" and 64 hex digits.
std::string HashOfToken(absl::string_view token);

// Whether `text` has the format of HashOfToken().
bool IsTokenHash(absl::string_view text);

// Compares in constant time.
bool SameHash(absl::string_view a, absl::string_view b);

}  // namespace fsdpd
