#include <cuda_fp8.h>

#include <algorithm>
#include <stdexcept>

#include "fsdp/kernels/fp8.h"
#include "fsdp/kernels/pack.cuh"

namespace fsdpd::kernels {
namespace {

using Number = __nv_bfloat16;

constexpr float kLargest = 448.0f;  // Of e4m3.
constexpr float kLeast = 0x1p-100f;

// Of magnitudes as bits: an infinity is above all numbers, and a NaN above that.
__device__ unsigned Magnitude(Number x) { return __bfloat16_as_ushort(x) & 0x7fffu; }

// NaN is not less than anything, and stays.
__device__ float LargestOf(unsigned magnitude) {
  const float x = __uint_as_float(magnitude << 16);
  return x < kLeast ? kLeast : x;
}
__device__ float ScaleOf(unsigned magnitude) { return LargestOf(magnitude) / kLargest; }
__device__ float FactorOf(unsigned magnitude) { return kLargest / LargestOf(magnitude); }

// Two at a time, as one instruction does; the first is the lower byte.
__device__ unsigned Rounded(float first, float second) {
  return __nv_cvt_float2_to_fp8x2(make_float2(first, second), __NV_SATFINITE, __NV_E4M3);
}

__device__ unsigned WarpMax(unsigned x) {
  for (int step = 16; step > 0; step /= 2) x = max(x, __shfl_xor_sync(0xffffffffu, x, step));
  return x;
}

__device__ unsigned BlockMax(unsigned x) {
  __shared__ unsigned of_warp[32];
  x = WarpMax(x);
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = x;
  __syncthreads();
  const unsigned warps = blockDim.x / 32;
  return WarpMax(threadIdx.x % 32 < warps ? of_warp[threadIdx.x % 32] : 0);
}

// So many packs of a row a thread keeps until the row's largest number is known; others it reads again.
constexpr int kKept = 4;
constexpr int64_t kMostThreads = 1024;

template <int N>
__device__ void StoreRounded(const Pack<Number, N>& from, float factor, unsigned char* to, int64_t pack) {
  Pack<unsigned char, N> out;
  for (int k = 0; k < N; k += 2) {
    const unsigned two = Rounded(Wide(from.at[k]) * factor, k + 1 < N ? Wide(from.at[k + 1]) * factor : 0);
    out.at[k] = static_cast<unsigned char>(two);
    if (k + 1 < N) out.at[k + 1] = static_cast<unsigned char>(two >> 8);
  }
  Store(to, pack, out);
}

// A block has a row.
template <int N>
__global__ void Rows(Fp8RowsArgs args) {
  const int64_t row = blockIdx.x, packs = args.width / N;
  const Number* const from = static_cast<const Number*>(args.from) + row * args.stride;
  unsigned char* const to = static_cast<unsigned char*>(args.to) + row * args.width;
  Pack<Number, N> kept[kKept];
  unsigned largest = 0;
#pragma unroll
  for (int j = 0; j < kKept; ++j) {
    const int64_t i = threadIdx.x + static_cast<int64_t>(j) * blockDim.x;
    if (i >= packs) break;
    kept[j] = Load<Number, N>(from, i);
    for (int k = 0; k < N; ++k) largest = max(largest, Magnitude(kept[j].at[k]));
  }
  const int64_t beyond = threadIdx.x + static_cast<int64_t>(kKept) * blockDim.x;
  for (int64_t i = beyond; i < packs; i += blockDim.x) {
    const auto pack = Load<Number, N>(from, i);
    for (int k = 0; k < N; ++k) largest = max(largest, Magnitude(pack.at[k]));
  }
  largest = BlockMax(largest);
  if (threadIdx.x == 0) args.scales[row] = ScaleOf(largest);
  const float factor = FactorOf(largest);
#pragma unroll
  for (int j = 0; j < kKept; ++j) {
    const int64_t i = threadIdx.x + static_cast<int64_t>(j) * blockDim.x;
    if (i >= packs) break;
    StoreRounded<N>(kept[j], factor, to, i);
  }
  for (int64_t i = beyond; i < packs; i += blockDim.x) {
    StoreRounded<N>(Load<Number, N>(from, i), factor, to, i);
  }
}

// ---- Columns. First the largest of each, by blocks of kPacks packs of columns and kRowsTogether rows, of
// which each warp has a part; a maximum is the same in whatever order.

constexpr int kPacks = 32;
constexpr int kWarps = 8;
constexpr int64_t kRowsTogether = 256;

template <int N>
__global__ void ColumnMax(Fp8ColumnsArgs args) {
  __shared__ unsigned of_warp[kWarps][kPacks * N];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t pack = blockIdx.x * static_cast<int64_t>(kPacks) + lane;
  const int64_t end = min(args.rows, (blockIdx.y + 1) * kRowsTogether);
  unsigned largest[N] = {};
  if (pack < args.width / N) {
#pragma unroll 4
    for (int64_t row = blockIdx.y * kRowsTogether + warp; row < end; row += kWarps) {
      const auto x = Load<Number, N>(static_cast<const Number*>(args.from) + row * args.stride, pack);
      for (int k = 0; k < N; ++k) largest[k] = max(largest[k], Magnitude(x.at[k]));
    }
  }
  for (int k = 0; k < N; ++k) of_warp[warp][lane * N + k] = largest[k];
  __syncthreads();
  const int64_t first = blockIdx.x * static_cast<int64_t>(kPacks * N);
  for (int c = threadIdx.x; c < kPacks * N && first + c < args.width; c += blockDim.x) {
    unsigned of_column = 0;
    for (int w = 0; w < kWarps; ++w) of_column = max(of_column, of_warp[w][c]);
    atomicMax(args.largest + first + c, of_column);
  }
}

// Then tiles of kTileRows x kTileColumns are turned in shared memory, four rows of a column as one word.
constexpr int kTileRows = 128;
constexpr int kTileColumns = 64;
constexpr int kTileWords = kTileRows / 4;

template <int N>
__global__ void Turn(Fp8ColumnsArgs args) {
  __shared__ unsigned words[kTileColumns][kTileWords + 1];
  __shared__ float factors[kTileColumns];
  const int64_t first_row = blockIdx.x * static_cast<int64_t>(kTileRows);
  const int64_t first_column = blockIdx.y * static_cast<int64_t>(kTileColumns);
  for (int c = threadIdx.x; c < kTileColumns; c += blockDim.x) {
    if (first_column + c >= args.width) break;
    const unsigned largest = args.largest[first_column + c];
    factors[c] = FactorOf(largest);
    if (blockIdx.x == 0) args.scales[first_column + c] = ScaleOf(largest);
  }
  __syncthreads();
  constexpr int kTilePacks = kTileColumns / N;
  for (int item = threadIdx.x; item < kTilePacks * kTileWords; item += blockDim.x) {
    const int pack = item % kTilePacks, word = item / kTilePacks;
    if (first_column + pack * N >= args.width) continue;
    Pack<Number, N> of_row[4] = {};
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const int64_t row = first_row + word * 4 + r;
      if (row >= args.rows) break;
      of_row[r] =
          Load<Number, N>(static_cast<const Number*>(args.from) + row * args.stride, first_column / N + pack);
    }
    for (int k = 0; k < N; ++k) {
      const float factor = factors[pack * N + k];
      const auto two = [&](int r) {
        return Rounded(Wide(of_row[r].at[k]) * factor, Wide(of_row[r + 1].at[k]) * factor);
      };
      words[pack * N + k][word] = two(0) | two(2) << 16;
    }
  }
  __syncthreads();
  unsigned* const to = static_cast<unsigned*>(args.to);
  const int64_t row_words = args.padded / 4, first_word = first_row / 4;
  for (int item = threadIdx.x; item < kTileColumns * kTileWords; item += blockDim.x) {
    const int column = item / kTileWords, word = item % kTileWords;
    if (first_column + column >= args.width || first_word + word >= row_words) continue;
    to[(first_column + column) * row_words + first_word + word] = words[column][word];
  }
}

// Whether rows can be read whole packs at a time.
bool WholePacks(const void* from, int64_t width, int64_t stride) {
  return Packs<Number>(width, {from}) && stride % kPack<Number> == 0;
}

template <int N>
void LaunchColumns(const Fp8ColumnsArgs& args, Stream stream) {
  const dim3 blocks(BlocksOf(args.width / N, kPacks), BlocksOf(args.rows, kRowsTogether));
  ColumnMax<N><<<blocks, kWarps * 32, 0, stream>>>(args);
  const dim3 tiles(BlocksOf(args.padded, kTileRows), BlocksOf(args.width, kTileColumns));
  Turn<N><<<tiles, 256, 0, stream>>>(args);
}

}  // namespace

void Fp8Rows(const Fp8RowsArgs& args, Stream stream) {
  if (args.rows == 0 || args.width == 0) return;
  constexpr int kWhole = kPack<Number>;
  const bool whole =
      WholePacks(args.from, args.width, args.stride) && reinterpret_cast<uintptr_t>(args.to) % kWhole == 0;
  const int64_t packs = whole ? args.width / kWhole : args.width;
  const int64_t wanted = ((packs + kKept - 1) / kKept + 31) / 32 * 32;
  const auto threads = static_cast<unsigned>(std::min(kMostThreads, wanted));
  const auto kernel = whole ? Rows<kWhole> : Rows<1>;
  kernel<<<static_cast<unsigned>(args.rows), threads, 0, stream>>>(args);
  CheckLaunch("fp8 rows");
}

void Fp8Columns(const Fp8ColumnsArgs& args, Stream stream) {
  if (args.width == 0 || args.padded == 0) return;
  const cudaError_t error = cudaMemsetAsync(args.largest, 0, args.width * sizeof(uint32_t), stream);
  if (error != cudaSuccess) throw std::runtime_error(cudaGetErrorString(error));
  const bool whole = WholePacks(args.from, args.width, args.stride);
  whole ? LaunchColumns<kPack<Number>>(args, stream) : LaunchColumns<1>(args, stream);
  CheckLaunch("fp8 columns");
}

}  // namespace fsdpd::kernels
