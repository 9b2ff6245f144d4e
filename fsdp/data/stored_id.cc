#include "fsdp/data/stored_id.h"

#include <string.h>

namespace fsdpd {
namespace {

// Calls `function` with a value of the type.
template <typename Function>
auto With(StoredId type, const Function& function) {
  switch (type) {
    case StoredId::kU8:
      return function(uint8_t{});
    case StoredId::kI8:
      return function(int8_t{});
    case StoredId::kU16:
      return function(uint16_t{});
    case StoredId::kI16:
      return function(int16_t{});
    case StoredId::kU32:
      return function(uint32_t{});
    case StoredId::kI32:
      return function(int32_t{});
    case StoredId::kI64:
      break;
  }
  return function(int64_t{});
}

}  // namespace

int64_t BytesOf(StoredId type) {
  return With(type, [](auto id) { return static_cast<int64_t>(sizeof(id)); });
}

void Widen(StoredId type, const void* bytes, int64_t count, int64_t* out) {
  With(type, [&](auto id) {
    for (int64_t i = 0; i < count; ++i) {
      // Files and supported machines are little-endian.
      memcpy(&id, static_cast<const char*>(bytes) + i * sizeof(id), sizeof(id));
      out[i] = id;
    }
  });
}

}  // namespace fsdpd
