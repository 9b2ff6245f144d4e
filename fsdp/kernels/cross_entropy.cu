#include <cmath>

#include "fsdp/kernels/cross_entropy.h"
#include "fsdp/kernels/pack.cuh"

namespace fsdpd::kernels {
namespace {

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / 32;
constexpr int kUnroll = 4;  // Loads in flight per thread.

// Online softmax state: the sum of exp(x - largest), relative to the largest x seen so far. Initially {-inf,
// 0}.
struct Running {
  float largest = -INFINITY;
  float sum = 0;

  // A NaN or infinity in any element propagates into the sum, so that non-finite steps are detected.
  template <int N>
  __device__ void AddAll(const float (&x)[N]) {
    float top = largest;
    for (int k = 0; k < N; ++k) top = fmaxf(top, x[k]);
    const float base = top == -INFINITY ? 0.0f : top;
    float added = sum * __expf(largest - base);
    for (int k = 0; k < N; ++k) added += __expf(x[k] - base);
    sum = added;
    largest = top;
  }
  __device__ void Merge(float other_largest, float other_sum) {
    const float top = fmaxf(largest, other_largest);
    const float base = top == -INFINITY ? 0.0f : top;
    sum = sum * __expf(largest - base) + other_sum * __expf(other_largest - base);
    largest = top;
  }
};

__device__ Running MergeWarp(Running mine) {
  for (int step = 16; step > 0; step /= 2) {
    const float largest = __shfl_xor_sync(0xffffffffu, mine.largest, step);
    const float sum = __shfl_xor_sync(0xffffffffu, mine.sum, step);
    mine.Merge(largest, sum);
  }
  return mine;
}

template <typename T, int N>
__global__ void Forward(CrossEntropyArgs args, float* losses) {
  const T* row = static_cast<const T*>(args.logits) + blockIdx.x * args.vocabulary;
  const int64_t packs = args.vocabulary / N;
  Running mine;
  for (int64_t first = threadIdx.x; first < packs; first += kThreads * kUnroll) {
    Pack<T, N> loaded[kUnroll];
    for (int u = 0; u < kUnroll; ++u) {
      const int64_t pack = first + u * kThreads;
      if (pack < packs) loaded[u] = Load<T, N>(row, pack);
    }
    for (int u = 0; u < kUnroll; ++u) {
      if (first + u * kThreads >= packs) break;
      float x[N];
      for (int k = 0; k < N; ++k) x[k] = Wide(loaded[u].at[k]);
      mine.AddAll(x);
    }
  }
  __shared__ Running of_warp[kWarps];
  mine = MergeWarp(mine);
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = mine;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int warp = 1; warp < kWarps; ++warp) mine.Merge(of_warp[warp].largest, of_warp[warp].sum);
  const float log_sum_exp = mine.largest + logf(mine.sum);
  const int64_t target = args.targets[blockIdx.x];
  args.log_sum_exp[blockIdx.x] = log_sum_exp;
  losses[blockIdx.x] = target < 0 ? 0.0f : log_sum_exp - Wide(row[target]);
}

// Grid: rows x chunks of a row.
template <typename T, int N>
__global__ void Backward(CrossEntropyArgs args, const float* scale) {
  const int64_t pack = static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x;
  if (pack >= args.vocabulary / N) return;
  T* row = static_cast<T*>(args.logits) + blockIdx.x * args.vocabulary;
  const int64_t target = args.targets[blockIdx.x];
  const float log_sum_exp = args.log_sum_exp[blockIdx.x], factor = target == kNoTarget ? 0.0f : *scale;
  auto x = Load<T, N>(row, pack);
  for (int k = 0; k < N; ++k) {
    const float probability = __expf(Wide(x.at[k]) - log_sum_exp);
    x.at[k] = Narrow<T>((probability - (pack * N + k == target ? 1.0f : 0.0f)) * factor);
  }
  Store(row, pack, x);
}

}  // namespace

void CrossEntropyForward(const CrossEntropyArgs& args, float* losses, Stream stream) {
  if (args.rows == 0) return;
  WithType(args.type, [&](auto of_type) {
    using T = decltype(of_type);
    const auto kernel = Packs<T>(args.vocabulary, {args.logits}) ? Forward<T, kPack<T>> : Forward<T, 1>;
    kernel<<<static_cast<unsigned>(args.rows), kThreads, 0, stream>>>(args, losses);
  });
  CheckLaunch("cross-entropy forward");
}

void CrossEntropyBackward(const CrossEntropyArgs& args, const float* scale, Stream stream) {
  if (args.rows == 0) return;
  WithType(args.type, [&](auto of_type) {
    using T = decltype(of_type);
    const bool packs = Packs<T>(args.vocabulary, {args.logits});
    const dim3 grid(static_cast<unsigned>(args.rows),
                    BlocksOf(packs ? args.vocabulary / kPack<T> : args.vocabulary, kThreads));
    const auto kernel = packs ? Backward<T, kPack<T>> : Backward<T, 1>;
    kernel<<<grid, kThreads, 0, stream>>>(args, scale);
  });
  CheckLaunch("cross-entropy backward");
}

}  // namespace fsdpd::kernels
