#include "fsdp/data/stored_id.h"

#include <string.h>

#include "base/check.h"

namespace fsdpd {
namespace {

template <typename T>
void WidenFrom(const void* bytes, int64_t count, int64_t* out) {
  for (int64_t i = 0; i < count; ++i) {
    T id;
    // Files and supported machines are little-endian.
    memcpy(&id, static_cast<const char*>(bytes) + i * sizeof(T), sizeof(T));
    out[i] = id;
  }
}

}  // namespace

int64_t BytesOf(StoredId type) {
  switch (type) {
    case StoredId::kU8:
    case StoredId::kI8:
      return 1;
    case StoredId::kU16:
    case StoredId::kI16:
      return 2;
    case StoredId::kU32:
    case StoredId::kI32:
      return 4;
    case StoredId::kI64:
      return 8;
  }
  FSDPD_CHECK(false);
  return 0;
}

void Widen(StoredId type, const void* bytes, int64_t count, int64_t* out) {
  switch (type) {
    case StoredId::kU8:
      return WidenFrom<uint8_t>(bytes, count, out);
    case StoredId::kI8:
      return WidenFrom<int8_t>(bytes, count, out);
    case StoredId::kU16:
      return WidenFrom<uint16_t>(bytes, count, out);
    case StoredId::kI16:
      return WidenFrom<int16_t>(bytes, count, out);
    case StoredId::kU32:
      return WidenFrom<uint32_t>(bytes, count, out);
    case StoredId::kI32:
      return WidenFrom<int32_t>(bytes, count, out);
    case StoredId::kI64:
      return WidenFrom<int64_t>(bytes, count, out);
  }
}

}  // namespace fsdpd
