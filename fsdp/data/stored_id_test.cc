#include "fsdp/data/stored_id.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

namespace fsdpd {
namespace {

// Both ends of the range of T, stored with a misalignment of one byte.
template <typename T>
void ExpectKept(StoredId type) {
  const T ends[] = {std::numeric_limits<T>::min(), 7, std::numeric_limits<T>::max()};
  EXPECT_EQ(BytesOf(type), static_cast<int64_t>(sizeof(T)));
  std::vector<char> bytes(1 + sizeof(ends));
  std::copy_n(reinterpret_cast<const char*>(ends), sizeof(ends), bytes.data() + 1);
  int64_t ids[3];
  Widen(type, bytes.data() + 1, 3, ids);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(ids[i], static_cast<int64_t>(ends[i]));
}

TEST(StoredId, WidensFullRangeOfEveryType) {
  ExpectKept<uint8_t>(StoredId::kU8);
  ExpectKept<int8_t>(StoredId::kI8);
  ExpectKept<uint16_t>(StoredId::kU16);
  ExpectKept<int16_t>(StoredId::kI16);
  ExpectKept<uint32_t>(StoredId::kU32);
  ExpectKept<int32_t>(StoredId::kI32);
  ExpectKept<int64_t>(StoredId::kI64);
}

}  // namespace
}  // namespace fsdpd
