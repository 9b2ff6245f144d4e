#include <stdexcept>

#include "fsdp/kernels/fp8.cuh"
#include "fsdp/kernels/fp8_swiglu.h"
#include "fsdp/kernels/swiglu.cuh"

namespace fsdpd::kernels {
namespace {

using Number = __nv_bfloat16;
constexpr int N = kPack<Number>;

// One block per row.
__global__ void Forward(Fp8SwigluArgs args) {
  const int64_t row = blockIdx.x, packs = args.width / N;
  const Number* const gates = static_cast<const Number*>(args.gate_up) + row * 2 * args.width;
  const auto product = [&](int64_t i) {
    const Pairs gate = LoadPairs(gates, i), up = LoadPairs(gates, packs + i);
    Pairs out;
    for (int k = 0; k < kPairs; ++k) {
      out.at[k] = PairOf(SwigluOf(FirstOf(gate.at[k]), FirstOf(up.at[k])),
                         SwigluOf(SecondOf(gate.at[k]), SecondOf(up.at[k])));
    }
    return out;
  };
  RoundRow(product, packs, static_cast<unsigned char*>(args.product) + row * args.width, args.scales + row,
           args.seen);
}

// ---- Backward.

struct Made {
  Pairs product, gate, up;  // product, and the gradients of gate and up.
};

__device__ Made MadeOf(const Fp8SwigluBackwardArgs& args, int64_t row, int64_t pack) {
  const int64_t packs = args.width / N, begin = row * packs + pack;
  const Number* const gate_up = static_cast<const Number*>(args.gate_up);
  const Pairs grad = LoadPairs(static_cast<const Number*>(args.grad_product), begin),
              gate = LoadPairs(gate_up, begin + row * packs),
              up = LoadPairs(gate_up, begin + (row + 1) * packs);
  Made made;
  for (int k = 0; k < kPairs; ++k) {
    const SwigluMade first = SwigluBackwardOf(FirstOf(grad.at[k]), FirstOf(gate.at[k]), FirstOf(up.at[k]));
    const SwigluMade second =
        SwigluBackwardOf(SecondOf(grad.at[k]), SecondOf(gate.at[k]), SecondOf(up.at[k]));
    made.product.at[k] = PairOf(first.product, second.product);
    made.gate.at[k] = PairOf(first.gate, second.gate);
    made.up.at[k] = PairOf(first.up, second.up);
  }
  return made;
}

// Scratch for maxima: one per row, then one per column of gates, ups and product.
struct Largest {
  __device__ explicit Largest(const Fp8SwigluBackwardArgs& args)
      : of_rows(args.largest), of_columns(args.largest + args.rows) {}

  uint32_t* of_rows;
  uint32_t* of_columns;
};

// Pass 1 of the backward: row and column maxima. A block covers 32 packs of columns and kRowsTogether rows,
// divided among its warps. A maximum is order-independent, so atomics are deterministic.
constexpr int kWarps = 8;
constexpr int64_t kRowsTogether = 256;
constexpr int kColumnsTogether = 32 * N;

// Arithmetic takes as long as memory traffic here, so occupancy decides: four blocks per multiprocessor with
// one row per thread are faster than two blocks with four rows.
__global__ void __launch_bounds__(kWarps * 32, 4) FindLargest(Fp8SwigluBackwardArgs args) {
  __shared__ unsigned of_warp[kWarps][kColumnsTogether / 2];
  const Largest largest(args);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t pack = blockIdx.x * static_cast<int64_t>(32) + lane;
  const bool has = pack < args.width / N;
  const int64_t end = min(args.rows, (blockIdx.y + 1) * kRowsTogether);
  unsigned of_column[3][kPairs] = {};
  const Pairs none = {};
  const Pairs by_gate = has ? LoadPairs(args.by_column, pack) : none,
              by_up = has ? LoadPairs(args.by_column, args.width / N + pack) : none;
#pragma unroll 1
  for (int64_t row = blockIdx.y * kRowsTogether + warp; row < end; row += kWarps) {
    unsigned of_row = 0;
    if (has) {
      const Made made = MadeOf(args, row, pack);
      for (int k = 0; k < kPairs; ++k) {
        const unsigned gate = Magnitudes(made.gate.at[k]), up = Magnitudes(made.up.at[k]);
        of_column[0][k] = __vmaxu2(of_column[0][k], gate);
        of_column[1][k] = __vmaxu2(of_column[1][k], up);
        of_column[2][k] = __vmaxu2(of_column[2][k], Magnitudes(made.product.at[k]));
        of_row = __vmaxu2(of_row, Magnitudes(ProductOf(made.gate.at[k], by_gate.at[k])));
        of_row = __vmaxu2(of_row, Magnitudes(ProductOf(made.up.at[k], by_up.at[k])));
      }
    }
    of_row = __reduce_max_sync(0xffffffffu, LargerHalf(of_row));
    if (lane == 0) atomicMax(largest.of_rows + row, of_row);
  }
  const int64_t first = blockIdx.x * static_cast<int64_t>(kColumnsTogether);
#pragma unroll
  for (int part = 0; part < 3; ++part) {
    for (int k = 0; k < kPairs; ++k) of_warp[warp][lane * kPairs + k] = of_column[part][k];
    __syncthreads();
    const int pair = threadIdx.x;
    if (pair < kColumnsTogether / 2 && first + 2 * pair < args.width) {
      unsigned of_all = 0;
      for (int w = 0; w < kWarps; ++w) of_all = __vmaxu2(of_all, of_warp[w][pair]);
      uint32_t* const to = largest.of_columns + part * args.width + first + 2 * pair;
      atomicMax(to, of_all & 0xffffu);
      atomicMax(to + 1, of_all >> 16);
    }
    __syncthreads();
  }
}

// Pass 2: recomputes the gradients and transposes tiles of kTileRows x kTileColumns in shared memory, with
// four rows of a column packed into a word.
constexpr int kTileRows = 128;
constexpr int kTileColumns = 64;
constexpr int kTileWords = kTileRows / 4;
constexpr int kTilePacks = kTileColumns / N;
constexpr int kTileThreads = kTilePacks * kTileWords;  // One pack of columns and four rows each.

struct Tile {
  unsigned words[3][kTileColumns][kTileWords + 1];  // Gates, ups, product.
  float of_columns[3][kTileColumns];
  float of_rows[kTileRows];
};

__device__ void LoadFactors(const Fp8SwigluBackwardArgs& args, int64_t first_row, int64_t first_column,
                            Tile* tile) {
  const Largest largest(args);
  for (int item = threadIdx.x; item < 3 * kTileColumns; item += blockDim.x) {
    const int part = item / kTileColumns, c = item % kTileColumns;
    const int64_t column = first_column + c;
    if (column >= args.width) continue;
    const unsigned of_column = largest.of_columns[part * args.width + column];
    tile->of_columns[part][c] = FactorOf(of_column);
    float* const scales =
        part == 2 ? args.transposed_product_scales : args.transposed_grad_scales + part * args.width;
    if (first_row == 0) scales[column] = ScaleOf(of_column);
  }
  for (int r = threadIdx.x; r < kTileRows && first_row + r < args.rows; r += blockDim.x) {
    const unsigned of_row = largest.of_rows[first_row + r];
    tile->of_rows[r] = FactorOf(of_row);
    if (first_column == 0) args.grad_scales[first_row + r] = ScaleOf(of_row);
  }
}

// Writes one output of four rows to the tile, transposed.
__device__ void PutWords(const Pairs& first, const Pairs& second, const Pairs& third, const Pairs& fourth,
                         int part, Tile* tile) {
  const int begin = threadIdx.x % kTilePacks * N, word = threadIdx.x / kTilePacks;
#pragma unroll
  for (int k = 0; k < N; ++k) {
    const float factor = tile->of_columns[part][begin + k];
    tile->words[part][begin + k][word] = RoundedWord(At(first, k) * factor, At(second, k) * factor,
                                                     At(third, k) * factor, At(fourth, k) * factor);
  }
}

__device__ void StoreTransposed(const Tile& tile, int part, int64_t first_row, int64_t first_column,
                                const Fp8SwigluBackwardArgs& args, void* to) {
  const int64_t row_words = args.padded / 4, first_word = first_row / 4;
  for (int item = threadIdx.x; item < kTileColumns * kTileWords; item += blockDim.x) {
    const int column = item / kTileWords, word = item % kTileWords;
    if (first_column + column >= args.width || first_word + word >= row_words) continue;
    static_cast<unsigned*>(to)[(first_column + column) * row_words + first_word + word] =
        tile.words[part][column][word];
  }
}

__global__ void __launch_bounds__(kTileThreads, 3) Round(Fp8SwigluBackwardArgs args) {
  __shared__ Tile tile;
  const int64_t first_row = blockIdx.x * static_cast<int64_t>(kTileRows);
  const int64_t first_column = blockIdx.y * static_cast<int64_t>(kTileColumns);
  const int pack = threadIdx.x % kTilePacks, word = threadIdx.x / kTilePacks;
  const int64_t row_pack = first_column / N + pack, packs = args.width / N;
  Made made[4] = {};
  if (row_pack < packs) {
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const int64_t row = first_row + word * 4 + r;
      if (row < args.rows) made[r] = MadeOf(args, row, row_pack);
    }
  }
  LoadFactors(args, first_row, first_column, &tile);
  __syncthreads();
  if (row_pack < packs) {
    const Pairs by_gate = LoadPairs(args.by_column, row_pack),
                by_up = LoadPairs(args.by_column, packs + row_pack);
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const int64_t row = first_row + word * 4 + r;
      if (row >= args.rows) break;
      unsigned char* const grads = static_cast<unsigned char*>(args.grads) + row * 2 * args.width;
      StoreRounded(ProductOf(made[r].gate, by_gate), tile.of_rows[word * 4 + r], grads, row_pack);
      StoreRounded(ProductOf(made[r].up, by_up), tile.of_rows[word * 4 + r], grads, packs + row_pack);
    }
    PutWords(made[0].gate, made[1].gate, made[2].gate, made[3].gate, 0, &tile);
    PutWords(made[0].up, made[1].up, made[2].up, made[3].up, 1, &tile);
    PutWords(made[0].product, made[1].product, made[2].product, made[3].product, 2, &tile);
  }
  __syncthreads();
  char* const transposed_grads = static_cast<char*>(args.transposed_grads);
  StoreTransposed(tile, 0, first_row, first_column, args, transposed_grads);
  StoreTransposed(tile, 1, first_row, first_column, args, transposed_grads + args.width * args.padded);
  StoreTransposed(tile, 2, first_row, first_column, args, args.transposed_product);
}

}  // namespace

void Fp8SwigluForward(const Fp8SwigluArgs& args, Stream stream) {
  if (args.rows == 0 || args.width == 0) return;
  Forward<<<static_cast<unsigned>(args.rows), RowThreads(args.width / N), 0, stream>>>(args);
  CheckLaunch("fp8 swiglu forward");
}

void Fp8SwigluBackward(const Fp8SwigluBackwardArgs& args, Stream stream) {
  if (args.rows == 0 || args.width == 0) return;
  const size_t bytes = (args.rows + 3 * args.width) * sizeof(uint32_t);
  const cudaError_t error = cudaMemsetAsync(args.largest, 0, bytes, stream);
  if (error != cudaSuccess) throw std::runtime_error(cudaGetErrorString(error));
  const dim3 blocks(BlocksOf(args.width, kColumnsTogether), BlocksOf(args.rows, kRowsTogether));
  FindLargest<<<blocks, kWarps * 32, 0, stream>>>(args);
  const dim3 tiles(BlocksOf(args.padded, kTileRows), BlocksOf(args.width, kTileColumns));
  Round<<<tiles, kTileThreads, 0, stream>>>(args);
  CheckLaunch("fp8 swiglu backward");
}

}  // namespace fsdpd::kernels
