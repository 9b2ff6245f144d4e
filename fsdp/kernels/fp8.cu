#include <stdexcept>

#include "fsdp/kernels/fp8.cuh"
#include "fsdp/kernels/fp8.h"

namespace fsdpd::kernels {
namespace {

using Number = __nv_bfloat16;

template <int N>
__device__ auto LoadPack(const Number* from, int64_t pack) {
  if constexpr (N == 1) {
    return Load<Number, 1>(from, pack);
  } else {
    return LoadPairs(from, pack);
  }
}

// A block has a row.
template <int N>
__global__ void Rows(Fp8RowsArgs args) {
  const int64_t row = blockIdx.x;
  const Number* const from = static_cast<const Number*>(args.from) + row * args.stride;
  RoundRow([&](int64_t i) { return LoadPack<N>(from, i); }, args.width / N,
           static_cast<unsigned char*>(args.to) + row * args.width, args.scales + row);
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
    decltype(LoadPack<N>(nullptr, 0)) of_row[4] = {};
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const int64_t row = first_row + word * 4 + r;
      if (row >= args.rows) break;
      of_row[r] =
          LoadPack<N>(static_cast<const Number*>(args.from) + row * args.stride, first_column / N + pack);
    }
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const float factor = factors[pack * N + k];
      words[pack * N + k][word] = RoundedWord(At(of_row[0], k) * factor, At(of_row[1], k) * factor,
                                              At(of_row[2], k) * factor, At(of_row[3], k) * factor);
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
  const auto kernel = whole ? Rows<kWhole> : Rows<1>;
  kernel<<<static_cast<unsigned>(args.rows), RowThreads(packs), 0, stream>>>(args);
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
