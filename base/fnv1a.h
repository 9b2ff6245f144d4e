// 64-bit FNV-1a hash: the same value for the same bytes in every build. Not collision-resistant against an
// attacker.
//
// Pure.
#pragma once

#include <absl/strings/string_view.h>

#include <cstdint>

namespace fsdpd {

constexpr uint64_t Fnv1a(absl::string_view bytes) {
  uint64_t hash = 14695981039346656037u;
  for (const char c : bytes) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211u;
  return hash;
}

}  // namespace fsdpd
