#include "fsdp/checkpoint/format/number_cast.h"

#include <cmath>
#include <cstring>

#include "base/check.h"

namespace fsdpd {
namespace {

template <typename T>
T Load(const void* from, int64_t index) {
  T value;
  std::memcpy(&value, static_cast<const char*>(from) + index * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return value;
}

template <typename T>
void Store(void* to, int64_t index, T value) {
  std::memcpy(static_cast<char*>(to) + index * static_cast<int64_t>(sizeof(T)), &value, sizeof(T));
}

uint32_t BitsOf(float value) { return Load<uint32_t>(&value, 0); }
float OfBits(uint32_t bits) { return Load<float>(&bits, 0); }

struct Fp32 {
  using Stored = float;
  static float ToFloat(float value) { return value; }
  static float Of(float value) { return value; }
};

struct Bf16 {
  using Stored = uint16_t;
  static float ToFloat(uint16_t value) { return OfBits(static_cast<uint32_t>(value) << 16); }
  static uint16_t Of(float value) {
    const uint32_t bits = BitsOf(value);
    if (std::isnan(value)) return static_cast<uint16_t>(bits >> 16 | 0x40);  // Stays a NaN.
    return static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
  }
};

struct Fp16 {
  using Stored = uint16_t;
  static float ToFloat(uint16_t value) {
    const uint32_t sign = static_cast<uint32_t>(value & 0x8000) << 16;
    const int exponent = value >> 10 & 0x1F;
    const uint32_t fraction = value & 0x3FF;
    if (exponent == 0x1F) return OfBits(sign | 0x7F800000 | fraction << 13);
    if (exponent == 0) {
      const float small = std::ldexp(static_cast<float>(fraction), -24);
      return sign != 0 ? -small : small;
    }
    return OfBits(sign | static_cast<uint32_t>(exponent + 112) << 23 | fraction << 13);
  }
  static uint16_t Of(float value) {
    const uint32_t bits = BitsOf(value), magnitude = bits & 0x7FFFFFFF;
    const auto sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
    if (magnitude > 0x7F800000) return static_cast<uint16_t>(sign | 0x7E00 | (magnitude >> 13 & 0x1FF));
    if (magnitude >= 0x477FF000) return static_cast<uint16_t>(sign | 0x7C00);  // 65520 and above.
    // Below the smallest normal number the spacing is 2^-24, which float32 has at 0.5: adding 0.5 rounds.
    if (magnitude < 0x38800000) {
      return static_cast<uint16_t>(sign | (BitsOf(OfBits(magnitude) + 0.5f) - BitsOf(0.5f)));
    }
    return static_cast<uint16_t>(sign | (magnitude - (112u << 23) + 0xFFF + (magnitude >> 13 & 1)) >> 13);
  }
};

struct Fp64 {
  using Stored = double;
  static float ToFloat(double value) { return static_cast<float>(value); }
  static double Of(float value) { return value; }
};

template <typename From, typename To>
int64_t Cast(int64_t count, void* numbers) {
  int64_t overflowed = 0;
  const auto one = [&](int64_t i) {
    const auto before = Load<typename From::Stored>(numbers, i);
    const float value = From::ToFloat(before);
    const typename To::Stored after = To::Of(value);
    Store(numbers, i, after);
    if (!std::isinf(To::ToFloat(after))) return;
    // Checked in the source's type: a float64 may be finite although the float is not.
    const bool was = std::is_same_v<From, Fp64> ? std::isinf(Load<double>(&before, 0)) : std::isinf(value);
    overflowed += was ? 0 : 1;
  };
  // In place: a widening cast runs backward, so that it does not overwrite unread elements.
  if (sizeof(typename To::Stored) <= sizeof(typename From::Stored)) {
    for (int64_t i = 0; i < count; ++i) one(i);
  } else {
    for (int64_t i = count - 1; i >= 0; --i) one(i);
  }
  return overflowed;
}

// REQUIRES: CanCast().
template <typename Function>
int64_t With(const TensorType& type, Function function) {
  if (type.name == "float32") return function(Fp32());
  if (type.name == "bfloat16") return function(Bf16());
  return type.name == "float16" ? function(Fp16()) : function(Fp64());
}

}  // namespace

bool CanCast(const TensorType& type) {
  return type.name == "float32" || type.name == "bfloat16" || type.name == "float16" ||
         type.name == "float64";
}

int64_t CastNumbers(const TensorType& from, const TensorType& to, int64_t count, void* numbers) {
  FSDPD_CHECK(CanCast(from) && CanCast(to));
  if (&from == &to) return 0;
  return With(from, [&](auto source) {
    return With(to, [&](auto target) { return Cast<decltype(source), decltype(target)>(count, numbers); });
  });
}

bool CanCompare(const TensorType& type) {
  return type.name.substr(0, 7) != "complex" && type.name.substr(0, 6) != "float8";
}

double NumberAt(const TensorType& type, const void* numbers, int64_t index) {
  if (type.name == "float32") return Load<float>(numbers, index);
  if (type.name == "bfloat16") return Bf16::ToFloat(Load<uint16_t>(numbers, index));
  if (type.name == "float16") return Fp16::ToFloat(Load<uint16_t>(numbers, index));
  if (type.name == "float64") return Load<double>(numbers, index);
  if (type.name == "int64") return static_cast<double>(Load<int64_t>(numbers, index));
  if (type.name == "int32") return Load<int32_t>(numbers, index);
  if (type.name == "int16") return Load<int16_t>(numbers, index);
  if (type.name == "int8") return Load<int8_t>(numbers, index);
  if (type.name == "uint64") return static_cast<double>(Load<uint64_t>(numbers, index));
  if (type.name == "uint32") return Load<uint32_t>(numbers, index);
  if (type.name == "uint16") return Load<uint16_t>(numbers, index);
  FSDPD_CHECK(CanCompare(type) && type.bytes == 1);
  return Load<uint8_t>(numbers, index);
}

}  // namespace fsdpd
