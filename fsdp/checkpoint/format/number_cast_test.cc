#include "fsdp/checkpoint/format/number_cast.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

namespace fsdpd {
namespace {

const TensorType& Type(const char* name) { return *FindTensorType(name); }

// The bits of a number after the cast.
uint32_t Cast(float value, const char* to, int64_t* overflowed = nullptr) {
  char bytes[8] = {};
  std::memcpy(bytes, &value, 4);
  const int64_t lost = CastNumbers(Type("float32"), Type(to), 1, bytes);
  if (overflowed != nullptr) *overflowed = lost;
  uint32_t bits = 0;
  std::memcpy(&bits, bytes, Type(to).bytes);
  return bits;
}

TEST(NumberCast, SixteenBitNumbersRoundTrip) {
  for (const char* type : {"float16", "bfloat16"}) {
    for (uint32_t bits = 0; bits < 0x10000; ++bits) {
      const double value = NumberAt(Type(type), &bits, 0);
      if (std::isnan(value)) {
        EXPECT_TRUE(std::isnan(NumberAt(Type(type), &bits, 0)));
        continue;
      }
      ASSERT_EQ(Cast(static_cast<float>(value), type), bits) << type;
    }
  }
}

// Compared with both neighbors: the nearer one, or the even one of two equally near.
TEST(NumberCast, RoundsToNearestEven) {
  for (const char* type : {"float16", "bfloat16"}) {
    const uint32_t infinite = type == std::string("float16") ? 0x7C00 : 0x7F80;
    for (uint32_t bits = 0; bits + 1 < infinite; ++bits) {
      const uint32_t next = bits + 1;
      const double low = NumberAt(Type(type), &bits, 0), high = NumberAt(Type(type), &next, 0);
      const auto middle = static_cast<float>((low + high) / 2);  // Exact in float32.
      ASSERT_EQ(Cast(middle, type), bits % 2 == 0 ? bits : next) << type << " " << bits;
      ASSERT_EQ(Cast(std::nextafter(middle, 0.0f), type), bits) << type << " " << bits;
      ASSERT_EQ(Cast(std::nextafter(middle, std::numeric_limits<float>::infinity()), type), next)
          << type << " " << bits;
      ASSERT_EQ(Cast(-middle, type) & 0x7FFF, Cast(middle, type)) << type << " " << bits;
    }
  }
}

TEST(NumberCast, CountsOverflow) {
  int64_t overflowed = 0;
  EXPECT_EQ(Cast(65504, "float16", &overflowed), 0x7BFFu);
  EXPECT_EQ(overflowed, 0);
  EXPECT_EQ(Cast(65519, "float16"), 0x7BFFu);
  EXPECT_EQ(Cast(65520, "float16", &overflowed), 0x7C00u);
  EXPECT_EQ(overflowed, 1);
  EXPECT_EQ(Cast(-std::numeric_limits<float>::infinity(), "float16", &overflowed), 0xFC00u);
  EXPECT_EQ(overflowed, 0) << "it was infinite before";
  Cast(std::numeric_limits<float>::max(), "bfloat16", &overflowed);
  EXPECT_EQ(overflowed, 1);
  double large = 1e300;
  EXPECT_EQ(CastNumbers(Type("float64"), Type("float32"), 1, &large), 1);
}

TEST(NumberCast, NanStaysNan) {
  for (const uint32_t bits : {0x7FC00000u, 0x7F800001u, 0xFF80FFFFu}) {
    float value;
    std::memcpy(&value, &bits, 4);
    for (const char* type : {"float16", "bfloat16", "float64"}) {
      char bytes[8] = {};
      std::memcpy(bytes, &value, 4);
      EXPECT_EQ(CastNumbers(Type("float32"), Type(type), 1, bytes), 0);
      EXPECT_TRUE(std::isnan(NumberAt(Type(type), bytes, 0))) << type << " " << bits;
    }
  }
}

TEST(NumberCast, WidensAndNarrowsInPlace) {
  std::vector<char> bytes(8 * 100);
  std::vector<float> numbers(100);
  for (int i = 0; i < 100; ++i) numbers[i] = static_cast<float>(i) - 50;
  std::memcpy(bytes.data(), numbers.data(), 400);
  const char* last = "float32";
  for (const char* type : {"float64", "bfloat16", "float32", "float16", "float64", "float16", "float32"}) {
    EXPECT_EQ(CastNumbers(Type(last), Type(type), 100, bytes.data()), 0);
    last = type;
    for (int i = 0; i < 100; ++i) ASSERT_EQ(NumberAt(Type(type), bytes.data(), i), i - 50.0) << type;
  }
}

}  // namespace
}  // namespace fsdpd
