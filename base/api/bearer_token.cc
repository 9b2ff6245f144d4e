#include "base/api/bearer_token.h"

#include <absl/strings/ascii.h>
#include <absl/strings/escaping.h>
#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <openssl/crypto.h>
#include <openssl/rand.h>
#include <openssl/sha.h>

#include <algorithm>

#include "base/check.h"

namespace fsdpd {
namespace {

constexpr char kTokenPrefix[] = "fsdpd_";
constexpr char kHashPrefix[] = "sha256:";
constexpr size_t kSecretBytes = 32;

std::string Hex(const unsigned char* bytes, size_t count) {
  return absl::BytesToHexString(absl::string_view(reinterpret_cast<const char*>(bytes), count));
}

}  // namespace

std::string NewBearerToken() {
  unsigned char secret[kSecretBytes];
  FSDPD_CHECK(RAND_bytes(secret, sizeof secret) == 1);
  return absl::StrCat(kTokenPrefix, Hex(secret, sizeof secret));
}

std::string HashOfToken(absl::string_view token) {
  unsigned char hash[SHA256_DIGEST_LENGTH];
  SHA256(reinterpret_cast<const unsigned char*>(token.data()), token.size(), hash);
  return absl::StrCat(kHashPrefix, Hex(hash, sizeof hash));
}

bool IsTokenHash(absl::string_view text) {
  constexpr size_t kPrefix = sizeof kHashPrefix - 1;
  return absl::StartsWith(text, kHashPrefix) && text.size() == kPrefix + 2 * SHA256_DIGEST_LENGTH &&
         std::all_of(text.begin() + kPrefix, text.end(),
                     [](char c) { return absl::ascii_isdigit(c) || (c >= 'a' && c <= 'f'); });
}

bool SameHash(absl::string_view a, absl::string_view b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace fsdpd
