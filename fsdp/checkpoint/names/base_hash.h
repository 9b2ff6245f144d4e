// Hash of the frozen weights of a LoRA job: the sum, modulo 2^64, of the hashes of all elements. It does not
// depend on sharding or on the format. Ranks compute it from their shards (fsdp/engine/base_fingerprint.h),
// and a merge from files (fsdp/checkpoint/convert/lora_merge.h).
//
// Pure.
#pragma once

#include <xxhash.h>

#include <cstdint>
#include <string>

namespace fsdpd {

// Odd, so that products with them lose no bits. Arithmetic is modulo 2^64.
inline constexpr uint64_t kHashIndexFactor = 0x9e3779b97f4a7c15;
inline constexpr uint64_t kHashMixFactor = 0xbf58476d1ce4e5b9;
inline constexpr int kHashMixShift = 31;

// `param`: our full name.
inline uint64_t HashOfName(const std::string& param) { return XXH64(param.data(), param.size(), /*seed=*/0); }

// `bits`: of the stored element, as a signed integer of its width. `index`: in the whole parameter.
inline uint64_t HashOfElement(uint64_t name, int64_t index, int64_t bits) {
  const uint64_t sum = static_cast<uint64_t>(index) * kHashIndexFactor + static_cast<uint64_t>(bits) + name;
  const auto mixed = static_cast<int64_t>(sum * kHashMixFactor);
  return static_cast<uint64_t>(mixed ^ (mixed >> kHashMixShift)) * kHashIndexFactor;
}

}  // namespace fsdpd
