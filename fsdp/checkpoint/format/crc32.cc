#include "fsdp/checkpoint/format/crc32.h"

#include <zlib.h>

#include <array>
#include <cstddef>
#ifdef __x86_64__
#include <immintrin.h>
#endif

namespace fsdpd {
namespace {

uint32_t ZlibCrc32(uint32_t before, const std::byte* bytes, int64_t size) {
  return static_cast<uint32_t>(crc32_z(before, reinterpret_cast<const Bytef*>(bytes), size));
}

#ifdef __x86_64__

// x^n modulo the CRC-32 polynomial, with the coefficient of x^0 in the highest bit.
constexpr uint32_t PowerOfX(int n) {
  uint32_t power = 0x80000000;
  for (int i = 0; i < n; ++i) power = (power >> 1) ^ ((power & 1) != 0 ? 0xEDB88320 : 0);
  return power;
}

// Factors that shift the first and the second 8 bytes of a 16-byte block by kBits bits: x^(kBits + 64) and
// x^kBits. The exponents are smaller by 1 because the product of two bit-reversed polynomials is the
// bit-reversed product times x.
template <int kBits>
struct Advance {
  static constexpr uint64_t kFirst = uint64_t{PowerOfX(kBits + 64 - 1)} << 32;
  static constexpr uint64_t kSecond = uint64_t{PowerOfX(kBits - 1)} << 32;
};

// Returns 16 bytes with the same CRC as `block`, kBits - 128 zero bits and `next`.
template <int kBits>
__attribute__((target("pclmul"))) __m128i Fold(__m128i block, __m128i next) {
  const __m128i factors = _mm_set_epi64x(static_cast<int64_t>(Advance<kBits>::kSecond),
                                         static_cast<int64_t>(Advance<kBits>::kFirst));
  const __m128i first = _mm_clmulepi64_si128(block, factors, 0x00);
  const __m128i second = _mm_clmulepi64_si128(block, factors, 0x11);
  return _mm_xor_si128(next, _mm_xor_si128(first, second));
}

constexpr int kBlockBytes = 16;
constexpr int kLanes = 8;  // Independent products, to hide their latency.
constexpr int64_t kRowBytes = int64_t{kLanes} * kBlockBytes;

__m128i Load(const std::byte* bytes) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes)); }

// REQUIRES: size is a positive multiple of kRowBytes.
__attribute__((target("pclmul"))) uint32_t FoldedCrc32(uint32_t before, const std::byte* bytes,
                                                       int64_t size) {
  std::array<__m128i, kLanes> lanes;
  for (int i = 0; i < kLanes; ++i) lanes[i] = Load(bytes + static_cast<ptrdiff_t>(i) * kBlockBytes);
  // The initial value of the register is added to the first 4 bytes; zip stores it inverted.
  lanes[0] = _mm_xor_si128(lanes[0], _mm_cvtsi32_si128(static_cast<int>(~before)));
  for (int64_t row = kRowBytes; row < size; row += kRowBytes) {
    for (int i = 0; i < kLanes; ++i)
      lanes[i] = Fold<8 * kRowBytes>(lanes[i], Load(bytes + row + static_cast<ptrdiff_t>(i) * kBlockBytes));
  }
  __m128i sum = lanes[0];
  for (int i = 1; i < kLanes; ++i) sum = Fold<8 * kBlockBytes>(sum, lanes[i]);
  std::array<std::byte, kBlockBytes> rest;
  _mm_storeu_si128(reinterpret_cast<__m128i*>(rest.data()), sum);
  return ZlibCrc32(~uint32_t{0}, rest.data(), kBlockBytes);  // With an initial value of 0.
}

#endif

}  // namespace

uint32_t Crc32(const void* bytes, int64_t size, uint32_t before) {
  const auto* from = static_cast<const std::byte*>(bytes);
#ifdef __x86_64__
  if (size >= kRowBytes && __builtin_cpu_supports("pclmul")) {
    const int64_t folded = size / kRowBytes * kRowBytes;
    before = FoldedCrc32(before, from, folded);
    from += folded;
    size -= folded;
  }
#endif
  return ZlibCrc32(before, from, size);
}

uint32_t Crc32Joined(uint32_t first, uint32_t second, int64_t second_size) {
  return static_cast<uint32_t>(crc32_combine(first, second, second_size));
}

}  // namespace fsdpd
