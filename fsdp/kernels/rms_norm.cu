#include <algorithm>

#include "fsdp/kernels/pack.cuh"
#include "fsdp/kernels/rms_norm.h"

namespace fsdpd::kernels {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kMaxPacks = 4;  // Of a row, a thread: 8192 numbers of 16 bits, 4096 of 32.

// The second pass over the parts: a block has kColumns columns and cuts the rows into kSlices.
constexpr int kColumns = 32;
constexpr int kSlices = 16;

// The same value in every thread. `scratch`: two rows, used in turns, so that one barrier a call is enough.
__device__ float BlockSum(float x, float (*scratch)[kWarps], int turn) {
  x = WarpSum(x);
  if (threadIdx.x % 32 == 0) scratch[turn][threadIdx.x / 32] = x;
  __syncthreads();
  float sum = 0;
  for (int warp = 0; warp < kWarps; ++warp) sum += scratch[turn][warp];
  return sum;
}

// A block is a row, which it reads once.
template <typename T, int K>
__global__ void Forward(RmsNormArgs args) {
  constexpr int N = kPack<T>;
  __shared__ float scratch[2][kWarps];
  const int64_t packs = args.width / N, begin = blockIdx.x * args.width;
  Pack<T, N> x[K];
  float squares = 0;
  for (int k = 0; k < K; ++k) {
    const int64_t pack = threadIdx.x + k * kThreads;
    if (pack >= packs) break;
    x[k] = Load<T, N>(static_cast<const T*>(args.x) + begin, pack);
    for (int n = 0; n < N; ++n) squares += Wide(x[k].at[n]) * Wide(x[k].at[n]);
  }
  const float mean = BlockSum(squares, scratch, 0) / static_cast<float>(args.width);
  const float rstd = rsqrtf(mean + static_cast<float>(args.epsilon));
  if (threadIdx.x == 0) args.rstd[blockIdx.x] = rstd;
  for (int k = 0; k < K; ++k) {
    const int64_t pack = threadIdx.x + k * kThreads;
    if (pack >= packs) break;
    const auto weight = Load<T, N>(static_cast<const T*>(args.weight), pack);
    for (int n = 0; n < N; ++n) x[k].at[n] = Narrow<T>(Wide(x[k].at[n]) * rstd * Wide(weight.at[n]));
    Store(static_cast<T*>(args.y) + begin, pack, x[k]);
  }
}

// A block takes every gridDim.x-th row and keeps its sums for the weight in registers. A thread has packs
// threadIdx.x + k * kThreads of each row.
template <typename T, int K>
__global__ void Rows(RmsNormBackwardArgs args) {
  constexpr int N = kPack<T>;
  __shared__ float scratch[2][kWarps];
  const int64_t packs = args.width / N;
  float sums[K][N] = {};
  int turn = 0;
  for (int64_t row = blockIdx.x; row < args.rows; row += gridDim.x, turn ^= 1) {
    const int64_t begin = row * args.width;
    const float rstd = args.rstd[row];
    Pack<T, N> grad[K], x[K], residual[K];
    float radial = 0;
    for (int k = 0; k < K; ++k) {
      const int64_t pack = threadIdx.x + k * kThreads;
      if (pack >= packs) break;
      grad[k] = Load<T, N>(static_cast<const T*>(args.grad_y) + begin, pack);
      x[k] = Load<T, N>(static_cast<const T*>(args.x) + begin, pack);
      if (args.residual != nullptr) {
        residual[k] = Load<T, N>(static_cast<const T*>(args.residual) + begin, pack);
      }
      const auto weight = Load<T, N>(static_cast<const T*>(args.weight), pack);
      for (int n = 0; n < N; ++n) {
        const float unit = Wide(x[k].at[n]) * rstd, of = Wide(grad[k].at[n]);
        radial += of * Wide(weight.at[n]) * unit;
        sums[k][n] += of * unit;
      }
    }
    const float mean = BlockSum(radial, scratch, turn) / static_cast<float>(args.width);
    for (int k = 0; k < K; ++k) {
      const int64_t pack = threadIdx.x + k * kThreads;
      if (pack >= packs) break;
      const auto weight = Load<T, N>(static_cast<const T*>(args.weight), pack);
      Pack<T, N> out;
      for (int n = 0; n < N; ++n) {
        const float unit = Wide(x[k].at[n]) * rstd;
        const float of_x = rstd * (Wide(grad[k].at[n]) * Wide(weight.at[n]) - unit * mean);
        out.at[n] = Narrow<T>(args.residual == nullptr ? of_x : of_x + Wide(residual[k].at[n]));
      }
      Store(static_cast<T*>(args.grad_x) + begin, pack, out);
    }
  }
  if (args.parts == nullptr) return;
  for (int k = 0; k < K; ++k) {
    const int64_t pack = threadIdx.x + k * kThreads;
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

// Packs of a row that each thread has.
template <typename T>
unsigned PacksAThread(int64_t width) {
  return BlocksOf(width / kPack<T>, kThreads);
}

template <typename T>
void LaunchForward(const RmsNormArgs& args, Stream stream) {
  const unsigned packs = PacksAThread<T>(args.width);
  const auto kernel = packs == 1 ? Forward<T, 1> : packs == 2 ? Forward<T, 2> : Forward<T, kMaxPacks>;
  kernel<<<static_cast<unsigned>(args.rows), kThreads, 0, stream>>>(args);
}

template <typename T>
void LaunchRows(const RmsNormBackwardArgs& args, unsigned blocks, Stream stream) {
  const unsigned packs = PacksAThread<T>(args.width);
  const auto kernel = packs == 1 ? Rows<T, 1> : packs == 2 ? Rows<T, 2> : Rows<T, kMaxPacks>;
  kernel<<<blocks, kThreads, 0, stream>>>(args);
}

}  // namespace

bool TakesRmsNorm(int64_t width, DType type, std::initializer_list<const void*> addresses) {
  bool takes = false;
  WithType(type, [&](auto of_type) {
    using T = decltype(of_type);
    takes = width <= kMaxPacks * kThreads * kPack<T> && Packs<T>(width, addresses);
  });
  return takes;
}

void RmsNormForward(const RmsNormArgs& args, Stream stream) {
  if (args.rows == 0) return;
  WithType(args.type, [&](auto of_type) { LaunchForward<decltype(of_type)>(args, stream); });
  CheckLaunch("RMSNorm forward");
}

void RmsNormBackward(const RmsNormBackwardArgs& args, Stream stream) {
  // Without a row one block still writes the sum over none.
  const auto blocks = static_cast<unsigned>(std::clamp<int64_t>(args.rows, 1, kRmsNormBlocks));
  WithType(args.type, [&](auto of_type) { LaunchRows<decltype(of_type)>(args, blocks, stream); });
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
