#include "fsdp/checkpoint/format/crc32.h"

#include <gtest/gtest.h>

#include <string>

namespace fsdpd {
namespace {

// Reference: the definition, bit by bit.
uint32_t SlowCrc32(const std::string& bytes, uint32_t before) {
  uint32_t crc = ~before;
  for (const char c : bytes) {
    crc ^= static_cast<unsigned char>(c);
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0xEDB88320 : 0);
  }
  return ~crc;
}

std::string MixedBytes(size_t size) {
  std::string bytes(size, '\0');
  for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<char>((i * 2654435761u) >> 13);
  return bytes;
}

TEST(Crc32, MatchesCheckValue) {
  EXPECT_EQ(Crc32("123456789", 9), 0xcbf43926u);
  EXPECT_EQ(Crc32(nullptr, 0), 0u);
}

// Sizes around each multiple of the folded block, at unaligned addresses.
TEST(Crc32, EqualsDefinitionForAllSizes) {
  const std::string bytes = MixedBytes(1300);
  for (size_t size = 0; size < 1200; ++size) {
    const size_t begin = size % 17;
    const uint32_t before = size % 3 == 0 ? 0 : 0x12345678u * static_cast<uint32_t>(size);
    ASSERT_EQ(Crc32(bytes.data() + begin, static_cast<int64_t>(size), before),
              SlowCrc32(bytes.substr(begin, size), before))
        << size;
  }
}

TEST(Crc32, EqualsDefinitionForManyRows) {
  for (const size_t size : {size_t{1} << 20, (size_t{1} << 20) + 77}) {
    const std::string bytes = MixedBytes(size);
    EXPECT_EQ(Crc32(bytes.data(), static_cast<int64_t>(size)), SlowCrc32(bytes, 0));
  }
}

TEST(Crc32, JoinsPieces) {
  const std::string first = "first", second(70000, 's');
  const std::string both = first + second;
  const uint32_t one = Crc32(first.data(), 5);
  EXPECT_EQ(Crc32Joined(one, Crc32(second.data(), 70000), 70000), Crc32(both.data(), 70005));
  EXPECT_EQ(Crc32(second.data(), 70000, one), Crc32(both.data(), 70005));
}

}  // namespace
}  // namespace fsdpd
