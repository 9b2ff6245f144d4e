// Device code for FP8 quantization as fp8.h describes it, for kernels that quantize their own output.
#pragma once

#include <cuda_fp8.h>

#include <cstdint>

#include "fsdp/kernels/fp8.h"
#include "fsdp/kernels/pack.cuh"

namespace fsdpd::kernels {

constexpr float kFp8Largest = 448.0f;  // The largest e4m3 number.
constexpr float kFp8Least = 0x1p-100f;

// |x| as bits: they sort like the magnitudes, with infinity above all numbers and NaN above infinity.
__device__ inline unsigned Magnitude(__nv_bfloat16 x) { return __bfloat16_as_ushort(x) & 0x7fffu; }

// A NaN compares false with everything, so it is returned unchanged.
__device__ inline float LargestOf(unsigned magnitude) {
  const float x = __uint_as_float(magnitude << 16);
  return x < kFp8Least ? kFp8Least : x;
}
__device__ inline float ScaleOf(unsigned magnitude) { return LargestOf(magnitude) / kFp8Largest; }
__device__ inline float FactorOf(unsigned magnitude) { return kFp8Largest / LargestOf(magnitude); }

// The scale of a row multiplies its elements to dequantize them, the factor to quantize them.
struct FullScale {
  static __device__ float Scale(unsigned magnitude) { return ScaleOf(magnitude); }
  static __device__ float Factor(unsigned magnitude) { return FactorOf(magnitude); }
};

// Power-of-two scales. 448 is 1.75 x 2^8. Non-finite magnitudes become the scale themselves.
struct PowerScale {
  static __device__ float Scale(unsigned magnitude) {
    constexpr unsigned kBelowOne = 0x007fffffu, kThreeQuarters = 0x00600000u;
    const unsigned bits = __float_as_uint(LargestOf(magnitude));
    if (bits >= 0x7f800000u) return __uint_as_float(bits);
    return __uint_as_float(((bits >> 23) - 8 + ((bits & kBelowOne) > kThreeQuarters ? 1 : 0)) << 23);
  }
  static __device__ float Factor(unsigned magnitude) { return 1 / Scale(magnitude); }
};

// Quantizes two numbers with one instruction; the first goes into the lower byte.
__device__ inline unsigned Rounded(float first, float second) {
  return __nv_cvt_float2_to_fp8x2(make_float2(first, second), __NV_SATFINITE, __NV_E4M3);
}

// Quantizes four numbers into one word; where the hardware has FP8, without going through 16-bit registers.
__device__ inline unsigned RoundedWord(float first, float second, float third, float fourth) {
#if __CUDA_ARCH__ >= 890
  unsigned word;
  asm("{\n.reg .b16 low, high;\n"
      "cvt.rn.satfinite.e4m3x2.f32 low, %2, %1;\n"
      "cvt.rn.satfinite.e4m3x2.f32 high, %4, %3;\n"
      "mov.b32 %0, {low, high};\n}"
      : "=r"(word)
      : "f"(first), "f"(second), "f"(third), "f"(fourth));
  return word;
#else
  return Rounded(first, second) | Rounded(third, fourth) << 16;
#endif
}

// Two bf16 packed into a word, the first in its lower half. Extracting 16-bit numbers from registers would
// cost more than all the arithmetic here.
__device__ inline float FirstOf(unsigned pair) { return __uint_as_float(pair << 16); }
__device__ inline float SecondOf(unsigned pair) { return __uint_as_float(pair & 0xffff0000u); }
__device__ inline unsigned PairOf(float first, float second) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(first, second);
  return *reinterpret_cast<const unsigned*>(&pair);
}
// |x| of both halves, as bits.
__device__ inline unsigned Magnitudes(unsigned pair) { return pair & 0x7fff7fffu; }
__device__ inline unsigned LargerHalf(unsigned pair) { return max(pair & 0xffffu, pair >> 16); }

constexpr int kPairs = kPack<__nv_bfloat16> / 2;
using Pairs = Pack<unsigned, kPairs>;  // bf16 elements in 16 bytes.
using One = Pack<__nv_bfloat16, 1>;

__device__ inline Pairs LoadPairs(const __nv_bfloat16* from, int64_t pack) {
  return Load<unsigned, kPairs>(reinterpret_cast<const unsigned*>(from), pack);
}

// Element k of a pack.
__device__ inline float At(const Pairs& pairs, int k) {
  return k % 2 == 0 ? FirstOf(pairs.at[k / 2]) : SecondOf(pairs.at[k / 2]);
}
__device__ inline float At(const One& one, int) { return Wide(one.at[0]); }

// Elementwise products; exact if one factor is a power of two.
__device__ inline unsigned ProductOf(unsigned a, unsigned b) {
  const __nv_bfloat162 product =
      __hmul2(*reinterpret_cast<const __nv_bfloat162*>(&a), *reinterpret_cast<const __nv_bfloat162*>(&b));
  return *reinterpret_cast<const unsigned*>(&product);
}
__device__ inline Pairs ProductOf(const Pairs& a, const Pairs& b) {
  Pairs product;
  for (int k = 0; k < kPairs; ++k) product.at[k] = ProductOf(a.at[k], b.at[k]);
  return product;
}

__device__ inline One ProductOf(const One& a, const One& b) {
  return {{Narrow<__nv_bfloat16>(Wide(a.at[0]) * Wide(b.at[0]))}};
}

// Loads fp32 and converts it to bf16.
__device__ inline Pairs LoadPairs(const float* from, int64_t pack) {
  constexpr int kFloats = kPack<float>;
  Pairs pairs;
#pragma unroll
  for (int part = 0; part < 2 * kPairs / kFloats; ++part) {
    const auto x = Load<float, kFloats>(from, pack * (2 * kPairs / kFloats) + part);
    for (int k = 0; k < kFloats; k += 2) pairs.at[(part * kFloats + k) / 2] = PairOf(x.at[k], x.at[k + 1]);
  }
  return pairs;
}

__device__ inline unsigned LargestIn(const Pairs& pairs) {
  unsigned largest = 0;
  for (int k = 0; k < kPairs; ++k) largest = __vmaxu2(largest, Magnitudes(pairs.at[k]));
  return LargerHalf(largest);
}
__device__ inline unsigned LargestIn(const One& one) { return Magnitude(one.at[0]); }

__device__ inline void StoreRounded(const Pairs& from, float factor, unsigned char* to, int64_t pack) {
  Pack<unsigned, kPairs / 2> out;
#pragma unroll
  for (int k = 0; k < 2 * kPairs; k += 4) {
    out.at[k / 4] = RoundedWord(At(from, k) * factor, At(from, k + 1) * factor, At(from, k + 2) * factor,
                                At(from, k + 3) * factor);
  }
  Store(reinterpret_cast<unsigned*>(to), pack, out);
}
__device__ inline void StoreRounded(const One& from, float factor, unsigned char* to, int64_t pack) {
  to[pack] = static_cast<unsigned char>(Rounded(At(from, 0) * factor, 0));
}

// Block-wide maximum, returned to all threads. Blocks consist of whole warps. Use it once per kernel.
__device__ inline unsigned BlockMax(unsigned x) {
  __shared__ unsigned of_warp[32];
  x = __reduce_max_sync(0xffffffffu, x);
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = x;
  __syncthreads();
  const unsigned warps = blockDim.x / 32;
  return __reduce_max_sync(0xffffffffu, threadIdx.x % 32 < warps ? of_warp[threadIdx.x % 32] : 0);
}

// FP8 statistics of a thread's part of a row. Values up to half of the least nonzero FP8 number are flushed
// to zero (ties go to even).
class RowStatistics {
 public:
  explicit __device__ RowStatistics(float factor) : factor_(factor) {}

  __device__ void Add(const Pairs& pairs) {
    for (int k = 0; k < 2 * kPairs; ++k) AddNumber(At(pairs, k));
  }
  __device__ void Add(const One& one) { AddNumber(At(one, 0)); }

  // Called by whole warps.
  __device__ void AddTo(Fp8Statistics* seen) const {
    const unsigned numbers = __reduce_add_sync(0xffffffffu, numbers_),
                   flushed = __reduce_add_sync(0xffffffffu, flushed_);
    if (threadIdx.x % 32 == 0) {
      atomicAdd(&seen->numbers, static_cast<unsigned long long>(numbers));
      atomicAdd(&seen->flushed, static_cast<unsigned long long>(flushed));
    }
  }

 private:
  __device__ void AddNumber(float x) {
    const bool is_number = fabsf(x) > 0;
    numbers_ += is_number ? 1 : 0;
    flushed_ += is_number && fabsf(x) * factor_ <= 0x1p-10f ? 1 : 0;
  }

  const float factor_;
  unsigned numbers_ = 0, flushed_ = 0;
};

// Merges a row's scale into the range of all scales. Most rows change neither bound, so they need no atomic.
// Called by one thread, and last: reading the bounds before the row costs registers, and 20% of SwiGLU's
// time.
__device__ inline void AddScale(Fp8Statistics* seen, unsigned largest_number, float scale) {
  if (largest_number == 0) return;  // A zero row has no scale.
  const unsigned long long bits = __float_as_uint(scale);
  if (bits < __ldcg(&seen->least_scale)) atomicMin(&seen->least_scale, bits);
  if (bits > __ldcg(&seen->largest_scale)) atomicMax(&seen->largest_scale, bits);
}

// Packs of a row that a thread holds in registers until the row's maximum is known; it recomputes the others.
constexpr int kFp8Saved = 4;

// Quantizes a block's row, whose packs source(i) loads or computes: Pairs, or one number each.
template <typename Scaling = FullScale, typename Source>
__device__ void RoundRow(const Source& source, int64_t packs, unsigned char* to, float* scale,
                         Fp8Statistics* seen) {
  decltype(source(0)) saved[kFp8Saved];
  unsigned largest = 0;
#pragma unroll
  for (int j = 0; j < kFp8Saved; ++j) {
    const int64_t i = threadIdx.x + static_cast<int64_t>(j) * blockDim.x;
    if (i >= packs) break;
    saved[j] = source(i);
    largest = max(largest, LargestIn(saved[j]));
  }
  const int64_t beyond = threadIdx.x + static_cast<int64_t>(kFp8Saved) * blockDim.x;
  for (int64_t i = beyond; i < packs; i += blockDim.x) largest = max(largest, LargestIn(source(i)));
  largest = BlockMax(largest);
  if (threadIdx.x == 0) *scale = Scaling::Scale(largest);
  const float factor = Scaling::Factor(largest);
#pragma unroll
  for (int j = 0; j < kFp8Saved; ++j) {
    const int64_t i = threadIdx.x + static_cast<int64_t>(j) * blockDim.x;
    if (i >= packs) break;
    StoreRounded(saved[j], factor, to, i);
  }
  for (int64_t i = beyond; i < packs; i += blockDim.x) StoreRounded(source(i), factor, to, i);
  if (seen == nullptr) return;
  if (threadIdx.x == 0) AddScale(seen, largest, Scaling::Scale(largest));
  if (blockIdx.x % kFp8Watched != 0) return;
  // Reads the row again, so that statistics cost no registers.
  RowStatistics row(factor);
  for (int64_t i = threadIdx.x; i < packs; i += blockDim.x) row.Add(source(i));
  row.AddTo(seen);
}

inline unsigned RowThreads(int64_t packs) {
  constexpr int64_t kMost = 1024;
  const int64_t wanted = ((packs + kFp8Saved - 1) / kFp8Saved + 31) / 32 * 32;
  return static_cast<unsigned>(wanted < kMost ? wanted : kMost);
}

}  // namespace fsdpd::kernels
