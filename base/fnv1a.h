// FNV-1a of 64 bits: the same number for the same bytes in every build, and nothing that a stranger could not
// make up.
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
