// How a file stores a token id: a little-endian integer of some width. Pure.
#pragma once

#include <cstdint>

namespace fsdpd {

enum class StoredId { kU8, kI8, kU16, kI16, kU32, kI32, kI64 };

int64_t BytesOf(StoredId type);

// `count` ids from `bytes`, which need no alignment. Signed types may give negative ids.
void Widen(StoredId type, const void* bytes, int64_t count, int64_t* out);

}  // namespace fsdpd
