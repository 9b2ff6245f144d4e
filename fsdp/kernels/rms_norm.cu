#include <algorithm>
#include <stdexcept>
#include <type_traits>

#include "fsdp/kernels/fp8.cuh"
#include "fsdp/kernels/pack.cuh"
#include "fsdp/kernels/part_sums.cuh"
#include "fsdp/kernels/rms_norm.h"

namespace fsdpd::kernels {
namespace {

constexpr int kMaxRowPacks = 1024;  // 8192 16-bit elements, 4096 fp32 elements.
constexpr int kForwardThreads = 256;
// Twice as many as forward, as each thread holds parts of two rows.
constexpr int kBackwardThreads = 512;

// Block-wide sum, returned to every thread of a block of 32 * kWarps. It has a single barrier, so two
// consecutive calls must use different `scratch`.
template <int kWarps>
__device__ float BlockSum(float x, float (&scratch)[kWarps]) {
  x = WarpSum(x);
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = x;
  __syncthreads();
  float sum = 0;
  for (int warp = 0; warp < kWarps; ++warp) sum += scratch[warp];
  return sum;
}

// One block per row, which is read once. `x` receives the thread's part of the normalized row.
template <typename T, int K>
__device__ void NormRow(const RmsNormArgs& args, Pack<T, kPack<T>> (&x)[K]) {
  constexpr int N = kPack<T>;
  __shared__ float scratch[kForwardThreads / 32];
  const int64_t packs = args.width / N, begin = blockIdx.x * args.width;
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
  }
}

template <typename T, int K>
__global__ void Forward(RmsNormArgs args) {
  constexpr int N = kPack<T>;
  Pack<T, N> y[K];
  NormRow<T, K>(args, y);
  for (int k = 0; k < K; ++k) {
    const int64_t pack = threadIdx.x + k * kForwardThreads;
    if (pack >= args.width / N) break;
    Store(static_cast<T*>(args.y) + blockIdx.x * args.width, pack, y[k]);
  }
}

__device__ Pairs PairsOf(const Pack<__nv_bfloat16, kPack<__nv_bfloat16>>& pack) {
  return *reinterpret_cast<const Pairs*>(&pack);
}

// Quantizes the normalized row to FP8 before writing it.
template <int K>
__global__ void Fp8Forward(RmsNormArgs args) {
  using T = __nv_bfloat16;
  const int64_t packs = args.width / kPack<T>;
  Pack<T, kPack<T>> y[K];
  NormRow<T, K>(args, y);
  unsigned largest = 0;
  for (int k = 0; k < K && threadIdx.x + k * kForwardThreads < packs; ++k) {
    largest = max(largest, LargestIn(PairsOf(y[k])));
  }
  largest = BlockMax(largest);
  if (threadIdx.x == 0) args.scales[blockIdx.x] = ScaleOf(largest);
  const float factor = FactorOf(largest);
  for (int k = 0; k < K; ++k) {
    const int64_t pack = threadIdx.x + k * kForwardThreads;
    if (pack >= packs) break;
    StoreRounded(PairsOf(y[k]), factor, static_cast<unsigned char*>(args.y) + blockIdx.x * args.width, pack);
  }
  if (args.seen == nullptr) return;
  if (threadIdx.x == 0) AddScale(args.seen, largest, ScaleOf(largest));
  if (blockIdx.x % kFp8Watched != 0) return;
  RowStatistics row(factor);
  for (int k = 0; k < K && threadIdx.x + k * kForwardThreads < packs; ++k) row.Add(PairsOf(y[k]));
  row.AddTo(args.seen);
}

// For narrow rows, as in tiny models and heads that normed_heads does not support: kLanes lanes per row, one
// pack per lane.
template <typename T, int kLanes>
__global__ void NarrowForward(RmsNormArgs args) {
  constexpr int N = kPack<T>;
  const int64_t packs = args.width / N, pack = threadIdx.x % kLanes;
  const int64_t row = (static_cast<int64_t>(blockIdx.x) * kForwardThreads + threadIdx.x) / kLanes;
  const bool has = row < args.rows && pack < packs;
  Pack<T, N> x;
  float squares = 0;
  if (has) {
    x = Load<T, N>(static_cast<const T*>(args.x), row * packs + pack);
    for (int n = 0; n < N; ++n) squares += Wide(x.at[n]) * Wide(x.at[n]);
  }
  const float mean = LanesSum<kLanes>(squares) / static_cast<float>(args.width);
  const float rstd = rsqrtf(mean + static_cast<float>(args.epsilon));
  if (!has) return;
  if (pack == 0) args.rstd[row] = rstd;
  const auto weight = Load<T, N>(static_cast<const T*>(args.weight), pack);
  for (int n = 0; n < N; ++n) x.at[n] = Narrow<T>(Wide(x.at[n]) * rstd * Wide(weight.at[n]));
  Store(static_cast<T*>(args.y), row * packs + pack, x);
}

// A thread's part of a row: packs threadIdx.x + k * kBackwardThreads.
template <typename T, int K>
struct RowPart {
  Pack<T, kPack<T>> grad[K], x[K], residual[K];
  float rstd;
};

template <typename T, int K>
__device__ void LoadPack(const RmsNormBackwardArgs& args, int64_t row, int64_t pack, int k,
                         RowPart<T, K>* part) {
  constexpr int N = kPack<T>;
  const int64_t begin = row * args.width;
  part->grad[k] = Load<T, N>(static_cast<const T*>(args.grad_y) + begin, pack);
  part->x[k] = Load<T, N>(static_cast<const T*>(args.x) + begin, pack);
  if (args.residual != nullptr)
    part->residual[k] = Load<T, N>(static_cast<const T*>(args.residual) + begin, pack);
}

template <typename T, int K>
__device__ void LoadRow(const RmsNormBackwardArgs& args, int64_t row, RowPart<T, K>* part) {
  const int64_t packs = args.width / kPack<T>;
  part->rstd = args.rstd[row];
  for (int k = 0; k < K; ++k) {
    const int64_t pack = threadIdx.x + k * kBackwardThreads;
    if (pack >= packs) break;
    LoadPack(args, row, pack, k, part);
  }
}

// Returns the pack's contribution to the row's mean(g * unit); adds its contribution to the weight's
// gradient.
template <typename T, int K>
__device__ float Radial(const RowPart<T, K>& of, const Pack<T, kPack<T>>& weight, int k, float* sums) {
  float radial = 0;
  for (int n = 0; n < kPack<T>; ++n) {
    const float unit = Wide(of.x[k].at[n]) * of.rstd, grad = Wide(of.grad[k].at[n]);
    radial += grad * Wide(weight.at[n]) * unit;
    sums[n] += grad * unit;
  }
  return radial;
}

// Returns the pack of y.
template <typename T, int K>
__device__ Pack<T, kPack<T>> StorePack(const RmsNormBackwardArgs& args, int64_t row, int64_t pack,
                                       const RowPart<T, K>& of, const Pack<T, kPack<T>>& weight, float mean,
                                       int k) {
  constexpr int N = kPack<T>;
  Pack<T, N> out, y;
  for (int n = 0; n < N; ++n) {
    const float unit = Wide(of.x[k].at[n]) * of.rstd;
    const float of_x = of.rstd * (Wide(of.grad[k].at[n]) * Wide(weight.at[n]) - unit * mean);
    out.at[n] = Narrow<T>(args.residual == nullptr ? of_x : of_x + Wide(of.residual[k].at[n]));
    y.at[n] = Narrow<T>(unit * Wide(weight.at[n]));
  }
  if (args.y != nullptr) Store(static_cast<T*>(args.y) + row * args.width, pack, y);
  Store(static_cast<T*>(args.grad_x) + row * args.width, pack, out);
  return y;
}

// Column maxima of |y|, two columns per word, over the rows that a thread has processed.
template <int K>
class ColumnsSeen {
 public:
  __device__ void Add(const Pairs& y, int k) {
    for (int pair = 0; pair < kPairs; ++pair)
      largest_[k][pair] = __vmaxu2(largest_[k][pair], Magnitudes(y.at[pair]));
  }
  // In most blocks the stored maximum is already larger, so reading it first saves most of the atomics.
  __device__ void AddTo(uint32_t* to, int k) const {
    for (int n = 0; n < 2 * kPairs; ++n) {
      const unsigned own = n % 2 == 0 ? largest_[k][n / 2] & 0xffffu : largest_[k][n / 2] >> 16;
      if (own > to[n]) atomicMax(to + n, own);
    }
  }

 private:
  unsigned largest_[K][kPairs] = {};
};

// Each block processes every gridDim.x-th row and accumulates the weight's gradient in registers. The next
// row is loaded while the threads of the block wait for each other on the current one; without that prefetch
// the memory idles.
template <typename T, int K, bool kLargest>
__global__ void __launch_bounds__(kBackwardThreads, K == 1 ? 2 : 1) Rows(RmsNormBackwardArgs args) {
  constexpr int N = kPack<T>;
  __shared__ float scratch[2][kBackwardThreads / 32];  // Alternating, so that one barrier per row is enough.
  const int64_t packs = args.width / N;
  Pack<T, N> weight[K];
  for (int k = 0; k < K; ++k) {
    const int64_t pack = threadIdx.x + k * kBackwardThreads;
    if (pack < packs) weight[k] = Load<T, N>(static_cast<const T*>(args.weight), pack);
  }
  float sums[K][N] = {};
  [[maybe_unused]] ColumnsSeen<K> columns;
  int turn = 0;
  RowPart<T, K> of, next;
  if (blockIdx.x < args.rows) LoadRow(args, blockIdx.x, &next);
  for (int64_t row = blockIdx.x; row < args.rows; row += gridDim.x, turn ^= 1) {
    of = next;
    if (row + gridDim.x < args.rows) LoadRow(args, row + gridDim.x, &next);
    float radial = 0;
    for (int k = 0; k < K; ++k) {
      if (threadIdx.x + k * kBackwardThreads >= packs) break;
      radial += Radial(of, weight[k], k, sums[k]);
    }
    const float mean = BlockSum(radial, scratch[turn]) / static_cast<float>(args.width);
    for (int k = 0; k < K; ++k) {
      const int64_t pack = threadIdx.x + k * kBackwardThreads;
      if (pack >= packs) break;
      const auto y = StorePack(args, row, pack, of, weight[k], mean, k);
      if constexpr (kLargest) columns.Add(PairsOf(y), k);
    }
  }
  if constexpr (kLargest) {
    for (int k = 0; k < K && threadIdx.x + k * kBackwardThreads < packs; ++k)
      columns.AddTo(args.largest + (threadIdx.x + k * kBackwardThreads) * N, k);
  }
  if (args.parts == nullptr) return;
  for (int k = 0; k < K; ++k) {
    const int64_t pack = threadIdx.x + k * kBackwardThreads;
    if (pack >= packs) break;
    for (int n = 0; n < N; ++n) args.parts[blockIdx.x * args.width + pack * N + n] = sums[k][n];
  }
}

// For narrow rows: kLanes lanes process rows cyclically. Sums for the weight are added in lane order.
template <typename T, int kLanes>
__global__ void __launch_bounds__(kBackwardThreads, 2) NarrowRows(RmsNormBackwardArgs args) {
  constexpr int N = kPack<T>, kTogether = kBackwardThreads / kLanes;
  __shared__ float of_thread[kBackwardThreads][N];
  const int64_t packs = args.width / N, pack = threadIdx.x % kLanes;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kTogether;
  Pack<T, N> weight;
  if (pack < packs) weight = Load<T, N>(static_cast<const T*>(args.weight), pack);
  float sums[N] = {};
  RowPart<T, 1> of, next;
  const auto load = [&](int64_t row) {
    if (row >= args.rows || pack >= packs) return;
    next.rstd = args.rstd[row];
    LoadPack(args, row, pack, 0, &next);
  };
  int64_t row = blockIdx.x * static_cast<int64_t>(kTogether) + threadIdx.x / kLanes;
  load(row);
  // All lanes of a warp loop as often as the first one, which has the lowest row, since the shuffles need all
  // of them.
  for (int64_t first = row - threadIdx.x % 32 / kLanes; first < args.rows; first += stride, row += stride) {
    const bool has = row < args.rows && pack < packs;
    of = next;
    load(row + stride);
    const float radial = LanesSum<kLanes>(has ? Radial(of, weight, 0, sums) : 0.0f);
    if (has) StorePack(args, row, pack, of, weight, radial / static_cast<float>(args.width), 0);
  }
  if (args.parts == nullptr) return;
  for (int n = 0; n < N; ++n) of_thread[threadIdx.x][n] = sums[n];
  __syncthreads();
  if (threadIdx.x >= packs) return;
  for (int other = 1; other < kTogether; ++other) {
    for (int n = 0; n < N; ++n) sums[n] += of_thread[threadIdx.x + other * kLanes][n];
  }
  for (int n = 0; n < N; ++n) args.parts[blockIdx.x * args.width + threadIdx.x * N + n] = sums[n];
}

// Calls run(K) with the number of row packs per thread, rounded up to a power of two.
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

bool TakesFp8RmsNorm(int64_t width, std::initializer_list<const void*> addresses) {
  return width / kPack<__nv_bfloat16> > 32 && TakesRmsNorm(width, DType::kBf16, addresses);
}

void RmsNormForward(const RmsNormArgs& args, Stream stream) {
  if (args.rows == 0) return;
  if (args.scales != nullptr) {
    WithPacks<__nv_bfloat16, kForwardThreads>(args.width, [&](auto packs) {
      Fp8Forward<packs><<<static_cast<unsigned>(args.rows), kForwardThreads, 0, stream>>>(args);
    });
    return CheckLaunch("RMSNorm forward to FP8");
  }
  WithType(args.type, [&](auto of_type) {
    using T = decltype(of_type);
    const auto narrow = [&](auto lanes) {
      const unsigned blocks = BlocksOf(args.rows, kForwardThreads / lanes);
      NarrowForward<T, lanes><<<blocks, kForwardThreads, 0, stream>>>(args);
    };
    WithLanes(args.width / kPack<T>, narrow, [&] {
      WithPacks<T, kForwardThreads>(args.width, [&](auto packs) {
        Forward<T, packs><<<static_cast<unsigned>(args.rows), kForwardThreads, 0, stream>>>(args);
      });
    });
  });
  CheckLaunch("RMSNorm forward");
}

void RmsNormBackward(const RmsNormBackwardArgs& args, Stream stream) {
  // Without rows, one block still writes a weight gradient of zero.
  const auto blocks = static_cast<unsigned>(std::clamp<int64_t>(args.rows, 1, kRmsNormBlocks));
  if (args.largest != nullptr) {
    const cudaError_t error = cudaMemsetAsync(args.largest, 0, args.width * sizeof(uint32_t), stream);
    if (error != cudaSuccess) throw std::runtime_error(cudaGetErrorString(error));
    WithPacks<__nv_bfloat16, kBackwardThreads>(args.width, [&](auto packs) {
      Rows<__nv_bfloat16, packs, true><<<blocks, kBackwardThreads, 0, stream>>>(args);
    });
  } else {
    WithType(args.type, [&](auto of_type) {
      using T = decltype(of_type);
      const auto narrow = [&](auto lanes) {
        NarrowRows<T, lanes><<<blocks, kBackwardThreads, 0, stream>>>(args);
      };
      WithLanes(args.width / kPack<T>, narrow, [&] {
        WithPacks<T, kBackwardThreads>(args.width, [&](auto packs) {
          Rows<T, packs, false><<<blocks, kBackwardThreads, 0, stream>>>(args);
        });
      });
    });
  }
  CheckLaunch("RMSNorm backward");
  if (args.parts == nullptr) return;
  AddUpParts({args.parts, blocks, args.width, args.weight_grad, args.grad, args.accumulate}, stream);
}

}  // namespace fsdpd::kernels
