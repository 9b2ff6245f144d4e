#include <algorithm>
#include <type_traits>

#include "fsdp/kernels/pack.cuh"
#include "fsdp/kernels/rms_norm.h"

namespace fsdpd::kernels {
namespace {

constexpr int kMaxRowPacks = 1024;  // 8192 numbers of 16 bits, 4096 of 32.
constexpr int kForwardThreads = 256;
// Twice as many: a thread holds a part of two rows.
constexpr int kBackwardThreads = 512;

// The second pass over the parts: a block has kColumns columns and cuts the rows into kSlices.
constexpr int kColumns = 32;
constexpr int kSlices = 16;

// The same value in every thread of a block of 32 * kWarps. `scratch`: its two calls in a row take another
// one.
template <int kWarps>
__device__ float BlockSum(float x, float (&scratch)[kWarps]) {
  x = WarpSum(x);
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = x;
  __syncthreads();
  float sum = 0;
  for (int warp = 0; warp < kWarps; ++warp) sum += scratch[warp];
  return sum;
}

// A block is a row, which it reads once.
template <typename T, int K>
__global__ void Forward(RmsNormArgs args) {
  constexpr int N = kPack<T>;
  __shared__ float scratch[kForwardThreads / 32];
  const int64_t packs = args.width / N, begin = blockIdx.x * args.width;
  Pack<T, N> x[K];
  float squares = 0;
  for (int k = 0; k < K; ++k) {
    const int64_t pack = threadIdx.x + k * kForwardThreads;
    if (pack >= packs) break;
    x[k] = Load<T, N>(static_cast<const T*>(args.x) + begin, pack);
    for (int n = 0; n < N; ++n) squares += Wide(x[k].at[n]) * Wide(x[k].at[n]);
  }
  const float mean = BlockSum(squares, scratch) / static_cast<float>(args.width);
  const float rstd = rsqrtf(mean + static_cast<float>(args.epsilon));
  if (threadIdx.x == 0) args.rstd[blockIdx.x] = rstd;
  for (int k = 0; k < K; ++k) {
    const int64_t pack = threadIdx.x + k * kForwardThreads;
    if (pack >= packs) break;
    const auto weight = Load<T, N>(static_cast<const T*>(args.weight), pack);
    for (int n = 0; n < N; ++n) x[k].at[n] = Narrow<T>(Wide(x[k].at[n]) * rstd * Wide(weight.at[n]));
    Store(static_cast<T*>(args.y) + begin, pack, x[k]);
  }
}

// What a thread has of a row: packs threadIdx.x + k * kBackwardThreads.
template <typename T, int K>
struct RowPart {
  Pack<T, kPack<T>> grad[K], x[K], residual[K];
  float rstd;
};

template <typename T, int K>
__device__ void LoadRow(const RmsNormBackwardArgs& args, int64_t row, RowPart<T, K>* part) {
  constexpr int N = kPack<T>;
  const int64_t packs = args.width / N, begin = row * args.width;
  part->rstd = args.rstd[row];
  for (int k = 0; k < K; ++k) {
    const int64_t pack = threadIdx.x + k * kBackwardThreads;
    if (pack >= packs) break;
    part->grad[k] = Load<T, N>(static_cast<const T*>(args.grad_y) + begin, pack);
    part->x[k] = Load<T, N>(static_cast<const T*>(args.x) + begin, pack);
    if (args.residual != nullptr)
      part->residual[k] = Load<T, N>(static_cast<const T*>(args.residual) + begin, pack);
  }
}

// A block takes every gridDim.x-th row and keeps its sums for the weight in registers. The next row is on its
// way while the threads of a block wait for each other at this one: without that the memory idles.
template <typename T, int K>
__global__ void __launch_bounds__(kBackwardThreads, K == 1 ? 2 : 1) Rows(RmsNormBackwardArgs args) {
  constexpr int N = kPack<T>;
  __shared__ float scratch[2][kBackwardThreads / 32];  // In turns: one barrier a row is enough.
  const int64_t packs = args.width / N;
  Pack<T, N> weight[K];
  for (int k = 0; k < K; ++k) {
    const int64_t pack = threadIdx.x + k * kBackwardThreads;
    if (pack < packs) weight[k] = Load<T, N>(static_cast<const T*>(args.weight), pack);
  }
  float sums[K][N] = {};
  int turn = 0;
  RowPart<T, K> of, next;
  if (blockIdx.x < args.rows) LoadRow(args, blockIdx.x, &next);
  for (int64_t row = blockIdx.x; row < args.rows; row += gridDim.x, turn ^= 1) {
    of = next;
    if (row + gridDim.x < args.rows) LoadRow(args, row + gridDim.x, &next);
    float radial = 0;
    for (int k = 0; k < K; ++k) {
      if (threadIdx.x + k * kBackwardThreads >= packs) break;
      for (int n = 0; n < N; ++n) {
        const float unit = Wide(of.x[k].at[n]) * of.rstd, grad = Wide(of.grad[k].at[n]);
        radial += grad * Wide(weight[k].at[n]) * unit;
        sums[k][n] += grad * unit;
      }
    }
    const float mean = BlockSum(radial, scratch[turn]) / static_cast<float>(args.width);
    for (int k = 0; k < K; ++k) {
      const int64_t pack = threadIdx.x + k * kBackwardThreads;
      if (pack >= packs) break;
      Pack<T, N> out, y;
      for (int n = 0; n < N; ++n) {
        const float unit = Wide(of.x[k].at[n]) * of.rstd;
        const float of_x = of.rstd * (Wide(of.grad[k].at[n]) * Wide(weight[k].at[n]) - unit * mean);
        out.at[n] = Narrow<T>(args.residual == nullptr ? of_x : of_x + Wide(of.residual[k].at[n]));
        y.at[n] = Narrow<T>(unit * Wide(weight[k].at[n]));
      }
      if (args.y != nullptr) Store(static_cast<T*>(args.y) + row * args.width, pack, y);
      Store(static_cast<T*>(args.grad_x) + row * args.width, pack, out);
    }
  }
  if (args.parts == nullptr) return;
  for (int k = 0; k < K; ++k) {
    const int64_t pack = threadIdx.x + k * kBackwardThreads;
    if (pack >= packs) break;
    for (int n = 0; n < N; ++n) args.parts[blockIdx.x * args.width + pack * N + n] = sums[k][n];
  }
}

template <typename T>
__global__ void SumParts(const float* parts, int64_t rows, int64_t width, T* into, bool accumulate) {
  __shared__ float of_slice[kSlices][kColumns];
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kColumns + threadIdx.x;
  float sum = 0;
  if (column < width) {
    for (int64_t row = threadIdx.y; row < rows; row += kSlices) sum += parts[row * width + column];
  }
  of_slice[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || column >= width) return;
  for (int slice = 1; slice < kSlices; ++slice) sum += of_slice[slice][threadIdx.x];
  into[column] = Narrow<T>(accumulate ? Wide(into[column]) + sum : sum);
}

// Calls run(K) with how many packs of a row each of a block's threads has, rounded up to a power of two.
template <typename T, int kThreads, typename Run>
void WithPacks(int64_t width, Run run) {
  const unsigned packs = BlocksOf(width / kPack<T>, kThreads);
  if (packs <= 1) return run(std::integral_constant<int, 1>());
  if constexpr (kMaxRowPacks > 2 * kThreads) {
    if (packs > 2) return run(std::integral_constant<int, kMaxRowPacks / kThreads>());
  }
  run(std::integral_constant<int, 2>());
}

}  // namespace

bool TakesRmsNorm(int64_t width, DType type, std::initializer_list<const void*> addresses) {
  bool takes = false;
  WithType(type, [&](auto of_type) {
    using T = decltype(of_type);
    takes = width <= kMaxRowPacks * kPack<T> && Packs<T>(width, addresses);
  });
  return takes;
}

void RmsNormForward(const RmsNormArgs& args, Stream stream) {
  if (args.rows == 0) return;
  WithType(args.type, [&](auto of_type) {
    using T = decltype(of_type);
    WithPacks<T, kForwardThreads>(args.width, [&](auto packs) {
      Forward<T, packs><<<static_cast<unsigned>(args.rows), kForwardThreads, 0, stream>>>(args);
    });
  });
  CheckLaunch("RMSNorm forward");
}

void RmsNormBackward(const RmsNormBackwardArgs& args, Stream stream) {
  // Without a row one block still writes the sum over none.
  const auto blocks = static_cast<unsigned>(std::clamp<int64_t>(args.rows, 1, kRmsNormBlocks));
  WithType(args.type, [&](auto of_type) {
    using T = decltype(of_type);
    WithPacks<T, kBackwardThreads>(
        args.width, [&](auto packs) { Rows<T, packs><<<blocks, kBackwardThreads, 0, stream>>>(args); });
  });
  CheckLaunch("RMSNorm backward");
  if (args.parts == nullptr) return;
  WithType(args.grad, [&](auto of_type) {
    using T = decltype(of_type);
    SumParts<T><<<BlocksOf(args.width, kColumns), dim3(kColumns, kSlices), 0, stream>>>(
        args.parts, blocks, args.width, static_cast<T*>(args.weight_grad), args.accumulate);
  });
  CheckLaunch("RMSNorm backward's sum of parts");
}

}  // namespace fsdpd::kernels
