// Value of a key in a short constant table, in place of a switch that only maps values.
//
//   constexpr std::pair<int, const char*> kPhrases[] = {{200, "OK"}, {404, "Not Found"}};
//   Lookup(kPhrases, status, "Error")
#pragma once

#include <cstddef>
#include <type_traits>
#include <utility>

namespace fsdpd {

template <typename Key, typename Value, size_t kSize>
constexpr Value Lookup(const std::pair<Key, Value> (&table)[kSize], std::common_type_t<Key> key,
                       std::common_type_t<Value> otherwise) {
  for (const auto& [each, value] : table) {
    if (each == key) return value;
  }
  return otherwise;
}

}  // namespace fsdpd
