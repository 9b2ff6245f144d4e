// Storage type of token ids in a file: little-endian integers of several widths. Pure.
#pragma once

#include <cstdint>

namespace fsdpd {

enum class StoredId { kU8, kI8, kU16, kI16, kU32, kI32, kI64 };

int64_t BytesOf(StoredId type);

// Converts `count` ids from `bytes`, which may be unaligned. Signed types may yield negative ids.
void Widen(StoredId type, const void* bytes, int64_t count, int64_t* out);

}  // namespace fsdpd
