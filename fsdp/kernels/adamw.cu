#include <algorithm>

#include "fsdp/kernels/adamw.h"
#include "fsdp/kernels/fp8_moments.h"
#include "fsdp/kernels/pack.cuh"
#include "fsdp/kernels/split_fp32.h"

namespace fsdpd::kernels {
namespace {

constexpr int kThreads = 256;
// Parameters that a thread updates at a time: enough bytes in flight, for 8-bit moments too.
template <typename M>
constexpr int kParams = sizeof(M) == 1 ? 8 : 4;
// Eight blocks per multiprocessor of an H100. Each block computes the bias corrections once: two powers in
// double precision, which would take longer than the memory traffic if every thread computed them.
constexpr unsigned kMaxBlocks = 132 * 8;

struct Factors {
  float keep, step, root, divisor, beta1, beta2, eps;
  uint32_t steps_taken;
};

__device__ Factors MakeFactors(const AdamWArgs& args) {
  const double steps = *args.steps_taken, rate = *args.learning_rate * args.lr_scale;
  const double correction1 = 1 - pow(args.beta1, steps), correction2 = 1 - pow(args.beta2, steps);
  return {static_cast<float>(1 - rate * args.weight_decay),
          static_cast<float>(rate / correction1),
          static_cast<float>(1 / sqrt(correction2)),
          *args.grad_divisor,
          static_cast<float>(args.beta1),
          static_cast<float>(args.beta2),
          static_cast<float>(args.eps),
          static_cast<uint32_t>(steps)};
}

// Conversions between fp32 and the stored moment; 8-bit moments use fp8_moments.h.
template <int kMoment, typename M>
__device__ float WideMoment(M stored) {
  if constexpr (std::is_same_v<M, uint8_t>) {
    return WidenMoment(stored, MomentFormatOf(kMoment));
  } else {
    return Wide(stored);
  }
}

template <int kMoment, typename M>
__device__ M StoredMoment(float moment, uint32_t hash) {
  if constexpr (std::is_same_v<M, uint8_t>) {
    return NarrowMoment(moment, MomentDither(hash, kMoment), MomentFormatOf(kMoment));
  } else {
    return Narrow<M>(moment);
  }
}

template <int N, bool kSplitFp32>
__device__ Pack<float, N> LoadParam(const AdamWArgs& args, int64_t i) {
  if constexpr (kSplitFp32) {
    const auto high = Load<uint16_t, N>(args.high, i), low = Load<uint16_t, N>(args.low, i);
    Pack<float, N> param;
    for (int k = 0; k < N; ++k) param.at[k] = __uint_as_float(JoinBits({high.at[k], low.at[k]}));
    return param;
  } else {
    return Load<float, N>(args.param, i);
  }
}

template <int N, bool kSplitFp32>
__device__ void StoreParam(const AdamWArgs& args, int64_t i, const Pack<float, N>& param) {
  if constexpr (kSplitFp32) {
    Pack<uint16_t, N> high, low;
    for (int k = 0; k < N; ++k) {
      const HalfBits halves = SplitBits(__float_as_uint(param.at[k]));
      high.at[k] = halves.high;
      low.at[k] = halves.low;
    }
    Store(args.high, i, high);
    Store(args.low, i, low);
  } else {
    Store(args.param, i, param);
  }
}

// Roundings are explicit: the compiler's choice of FMA contraction differs between storage types, and the
// results must not.
template <typename G, typename M, int N, bool kSplitFp32>
__device__ void UpdatePack(const AdamWArgs& args, const Factors& f, int64_t i) {
  auto param = LoadParam<N, kSplitFp32>(args, i);
  const auto grad = Load<G, N>(static_cast<const G*>(args.grad), i);
  auto exp_avg = Load<M, N>(static_cast<const M*>(args.exp_avg), i);
  auto exp_avg_sq = Load<M, N>(static_cast<const M*>(args.exp_avg_sq), i);
  for (int k = 0; k < N; ++k) {
    const float g = Wide(grad.at[k]) / f.divisor;
    const float m = __fmaf_rn(f.beta1, WideMoment<0>(exp_avg.at[k]), __fmul_rn(1 - f.beta1, g));
    const float v = __fmaf_rn(f.beta2, WideMoment<1>(exp_avg_sq.at[k]), __fmul_rn((1 - f.beta2) * g, g));
    const float step = __fdiv_rn(f.step * m, __fmaf_rn(sqrtf(v), f.root, f.eps));
    param.at[k] = __fmaf_rn(param.at[k], f.keep, -step);
    const uint32_t hash = MomentHash(param.at[k], m, f.steps_taken);
    exp_avg.at[k] = StoredMoment<0, M>(m, hash);
    exp_avg_sq.at[k] = StoredMoment<1, M>(v, hash);
  }
  StoreParam<N, kSplitFp32>(args, i, param);
  Store(static_cast<M*>(args.exp_avg), i, exp_avg);
  Store(static_cast<M*>(args.exp_avg_sq), i, exp_avg_sq);
}

template <typename G, typename M, int N, bool kSplitFp32>
__global__ void Update(AdamWArgs args) {
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
