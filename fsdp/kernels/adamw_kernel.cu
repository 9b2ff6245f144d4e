#include <algorithm>

#include "fsdp/kernels/adamw_kernel.h"
#include "fsdp/kernels/fp8_moment_format.h"
#include "fsdp/kernels/pack.cuh"
#include "fsdp/kernels/split_bits.h"

namespace fsdpd::kernels {
namespace {

constexpr int kThreads = 256;
// Blocks of a multiprocessor that run at a time, which limits a thread to 64 registers.
constexpr int kBlocks = 4;
// Two per resident block on an H100. Each block computes the bias corrections once: two powers in double
// precision, which would take longer than the memory traffic if every thread computed them.
constexpr unsigned kMaxBlocks = 132 * kBlocks * 2;
// Parameters that a thread updates at a time: enough bytes in flight, for 8-bit moments too.
template <typename M>
constexpr int kParams = sizeof(M) == 1 ? 8 : 4;

struct Factors {
  float keep, step, root, divisor, inverse_divisor, beta1, beta2, eps;
  uint32_t steps_taken;
};

__device__ Factors MakeFactors(const AdamWArgs& args) {
  const double steps = *args.steps_taken, rate = *args.learning_rate * args.lr_scale;
  const double correction1 = 1 - pow(args.beta1, steps), correction2 = 1 - pow(args.beta2, steps);
  return {static_cast<float>(1 - rate * args.weight_decay),
          static_cast<float>(rate / correction1),
          static_cast<float>(1 / sqrt(correction2)),
          *args.grad_divisor,
          1 / *args.grad_divisor,
          static_cast<float>(args.beta1),
          static_cast<float>(args.beta2),
          static_cast<float>(args.eps),
          static_cast<uint32_t>(steps)};
}

// Quotient() and Root() are the compiler's code for `/` and sqrtf() without the branches for operands near
// the limits of fp32: a branch for each keeps the compiler from interleaving the elements of a pack. They
// require finite operands and a normal divisor. Results can differ in their last bit if |a| or x is below
// 2^-100.

// a / b, given `inverse`: 1 / b rounded. The estimate is off by up to 1.5 units in the last place, which its
// remainder corrects.
__device__ float Quotient(float a, float b, float inverse) {
  const float estimate = __fmul_rn(a, inverse);
  return __fmaf_rn(__fmaf_rn(-b, estimate, a), inverse, estimate);
}

__device__ float Quotient(float a, float b) {
  float inverse;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(b));
  return Quotient(a, b, __fmaf_rn(inverse, __fmaf_rn(-b, inverse, 1), inverse));
}

// Below the least normal number, down to 0, the estimate is at most the root.
__device__ float Root(float x) {
  constexpr float kLeastNormal = 0x1p-126f;
  float inverse;
  asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(fmaxf(x, kLeastNormal)));
  const float estimate = __fmul_rn(x, inverse);
  return __fmaf_rn(__fmaf_rn(-estimate, estimate, x), 0.5f * inverse, estimate);
}

// N adjacent elements of 8 or 16 bits, as words if there are several: extracting elements from Pack<T, N>
// would cost more than the arithmetic here.
template <typename T, int N>
using Words = Pack<std::conditional_t<N == 1, T, uint32_t>, N == 1 ? 1 : N * sizeof(T) / 4>;

template <typename T, int N>
__device__ Words<T, N> LoadWords(const void* from, int64_t i) {
  return static_cast<const Words<T, N>*>(from)[i];
}
template <typename T, int N>
__device__ void StoreWords(void* to, int64_t i, const Words<T, N>& words) {
  static_cast<Words<T, N>*>(to)[i] = words;
}

// Element k of 16 bits as the upper half of a word, with zeros below.
template <typename Words>
__device__ uint32_t UpperHalf(const Words& words, int k) {
  const uint32_t word = words.at[k / 2];
  return k % 2 == 0 ? word << 16 : word & 0xffff0000u;
}

template <typename T, int N>
__device__ Pack<float, N> LoadWide(const void* from, int64_t i) {
  Pack<float, N> wide;
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    const auto words = LoadWords<uint16_t, N>(from, i);
#pragma unroll
    for (int k = 0; k < N; ++k) wide.at[k] = __uint_as_float(UpperHalf(words, k));
  } else {
    const auto narrow = Load<T, N>(static_cast<const T*>(from), i);
#pragma unroll
    for (int k = 0; k < N; ++k) wide.at[k] = Wide(narrow.at[k]);
  }
  return wide;
}

// Moments are loaded in units of UnitOf<kMoment, M>(), which is multiplied into their betas.
template <int kMoment, typename M>
__device__ float UnitOf() {
  return std::is_same_v<M, uint8_t> ? MomentUnit(MomentFormatOf(kMoment)) : 1;
}

template <int kMoment, typename M, int N>
__device__ Pack<float, N> LoadMoments(const void* from, int64_t i) {
  if constexpr (std::is_same_v<M, uint8_t>) {
    const auto words = LoadWords<uint8_t, N>(from, i);
    Pack<float, N> moments;
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const uint32_t first = static_cast<uint32_t>(words.at[k / 4]) << (24 - k % 4 * 8);
      moments.at[k] = MomentInUnits(first, MomentFormatOf(kMoment));
    }
    return moments;
  } else {
    return LoadWide<M, N>(from, i);
  }
}

template <int kMoment, typename M, int N>
__device__ void StoreMoments(void* to, int64_t i, const Pack<float, N>& moments,
                             const Pack<uint32_t, N>& hashes) {
  if constexpr (std::is_same_v<M, uint8_t>) {
    Words<uint8_t, N> words = {};
#pragma unroll
    for (int k = N - 1; k >= 0; --k) {
      const uint32_t dither = MomentDither(hashes.at[k], kMoment);
      words.at[k / 4] = words.at[k / 4] * 256 + NarrowMoment(moments.at[k], dither, MomentFormatOf(kMoment));
    }
    StoreWords<uint8_t, N>(to, i, words);
  } else {
    Pack<M, N> narrow;
    for (int k = 0; k < N; ++k) narrow.at[k] = Narrow<M>(moments.at[k]);
    Store(static_cast<M*>(to), i, narrow);
  }
}

template <int N, bool kSplitFp32>
__device__ Pack<float, N> LoadParam(const AdamWArgs& args, int64_t i) {
  if constexpr (kSplitFp32) {
    const auto high = LoadWords<uint16_t, N>(args.high, i), low = LoadWords<uint16_t, N>(args.low, i);
    Pack<float, N> param;
#pragma unroll
    for (int k = 0; k < N; ++k) {
      param.at[k] = __uint_as_float(JoinUpperHalves(UpperHalf(high, k), UpperHalf(low, k)));
    }
    return param;
  } else {
    return Load<float, N>(args.param, i);
  }
}

template <int N, bool kSplitFp32>
__device__ void StoreParam(const AdamWArgs& args, int64_t i, const Pack<float, N>& param) {
  if constexpr (!kSplitFp32) {
    Store(args.param, i, param);
  } else if constexpr (N == 1) {
    const HalfBits halves = SplitBits(__float_as_uint(param.at[0]));
    args.high[i] = halves.high;
    args.low[i] = halves.low;
  } else {
    constexpr uint32_t kUpperHalves = 0x7632, kLowerHalves = 0x5410;  // Selectors of __byte_perm().
    Words<uint16_t, N> high, low;
#pragma unroll
    for (int k = 0; k < N; k += 2) {
      const uint32_t first = StorableBits(__float_as_uint(param.at[k])),
                     second = StorableBits(__float_as_uint(param.at[k + 1]));
      high.at[k / 2] = __byte_perm(first + kRoundUp, second + kRoundUp, kUpperHalves);
      low.at[k / 2] = __byte_perm(first, second, kLowerHalves);
    }
    StoreWords<uint16_t, N>(args.high, i, high);
    StoreWords<uint16_t, N>(args.low, i, low);
  }
}

// Roundings are explicit: the compiler's choice of FMA contraction differs between storage types, and the
// results must not.
template <typename G, typename M, int N, bool kSplitFp32>
__device__ void UpdatePack(const AdamWArgs& args, const Factors& f, int64_t i) {
  auto param = LoadParam<N, kSplitFp32>(args, i);
  const auto grad = LoadWide<G, N>(args.grad, i);
  auto exp_avg = LoadMoments<0, M, N>(args.exp_avg, i);
  auto exp_avg_sq = LoadMoments<1, M, N>(args.exp_avg_sq, i);
  Pack<uint32_t, N> hashes;
#pragma unroll
  for (int k = 0; k < N; ++k) {
    const float g = Quotient(grad.at[k], f.divisor, f.inverse_divisor);
    const float m = __fmaf_rn(f.beta1 * UnitOf<0, M>(), exp_avg.at[k], __fmul_rn(1 - f.beta1, g));
    const float v = __fmaf_rn(f.beta2 * UnitOf<1, M>(), exp_avg_sq.at[k], __fmul_rn((1 - f.beta2) * g, g));
    const float step = Quotient(f.step * m, __fmaf_rn(Root(v), f.root, f.eps));
    param.at[k] = __fmaf_rn(param.at[k], f.keep, -step);
    exp_avg.at[k] = m;
    exp_avg_sq.at[k] = v;
    hashes.at[k] = MomentHash(param.at[k], m, f.steps_taken);
  }
  StoreParam<N, kSplitFp32>(args, i, param);
  StoreMoments<0, M, N>(args.exp_avg, i, exp_avg, hashes);
  StoreMoments<1, M, N>(args.exp_avg_sq, i, exp_avg_sq, hashes);
}

template <typename G, typename M, int N, bool kSplitFp32>
__global__ void __launch_bounds__(kThreads, kBlocks) Update(AdamWArgs args) {
  if (*args.skip == 1.0f) return;
  __shared__ Factors factors;
  if (threadIdx.x == 0) factors = MakeFactors(args);
  __syncthreads();
  const Factors mine = factors;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < args.elements / N;
       i += stride) {
    UpdatePack<G, M, N, kSplitFp32>(args, mine, i);
  }
}

// Whether all arrays can be accessed `params` elements at a time: alignment and size.
bool PacksOf(const AdamWArgs& args, int params) {
  const auto aligned = [params](const void* address, DType type) {
    return reinterpret_cast<uintptr_t>(address) % (params * BytesOf(type)) == 0;
  };
  return args.elements % params == 0 && aligned(args.param, DType::kFp32) &&
         aligned(args.high, DType::kBf16) && aligned(args.low, DType::kBf16) &&
         aligned(args.grad, args.grad_type) && aligned(args.exp_avg, args.moment_type) &&
         aligned(args.exp_avg_sq, args.moment_type);
}

template <typename G, typename M, bool kSplitFp32>
void Launch(const AdamWArgs& args, Stream stream) {
  constexpr int kMost = kParams<M>;
  const bool packs = PacksOf(args, kMost);
  const unsigned blocks =
      std::min(kMaxBlocks, BlocksOf(packs ? args.elements / kMost : args.elements, kThreads));
  const auto kernel = packs ? Update<G, M, kMost, kSplitFp32> : Update<G, M, 1, kSplitFp32>;
  kernel<<<blocks, kThreads, 0, stream>>>(args);
}

}  // namespace

void AdamWUpdate(const AdamWArgs& args, Stream stream) {
  if (args.elements == 0) return;
  WithType(args.grad_type, [&](auto of_grad) {
    const auto launch = [&](auto of_moment) {
      using G = decltype(of_grad);
      using M = decltype(of_moment);
      args.param == nullptr ? Launch<G, M, true>(args, stream) : Launch<G, M, false>(args, stream);
    };
    args.moment_type == DType::kFp8 ? launch(uint8_t()) : WithType(args.moment_type, launch);
  });
  CheckLaunch("AdamW");
}

}  // namespace fsdpd::kernels
