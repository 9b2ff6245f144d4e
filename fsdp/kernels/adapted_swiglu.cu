#include <algorithm>

#include "fsdp/kernels/adapted_swiglu.h"
#include "fsdp/kernels/pack.cuh"
#include "fsdp/kernels/swiglu.cuh"

namespace fsdpd::kernels {
namespace {

using Bf16 = __nv_bfloat16;

// A warp has 32 columns and computes 16 rows at a time, as four products of tensor cores with 8 columns each.
// It keeps its columns of the matrices in registers; `low` of the block's rows is in shared memory.
constexpr int kWarps = 4, kThreads = 32 * kWarps;
constexpr int kTileRows = 16, kRows = 4 * kTileRows, kColumns = 32;
constexpr int kProducts = 4;
constexpr int kStep = 8;  // Ranks that one instruction sums over.

template <int kSteps>
using LowRows = Bf16[kSteps][kRows][kStep];

// Two adjacent numbers in bf16.
__device__ uint32_t Joined(Bf16 first, Bf16 second) {
  return __bfloat16_as_ushort(first) | static_cast<uint32_t>(__bfloat16_as_ushort(second)) << 16;
}
__device__ float First(uint32_t pair) { return __uint_as_float(pair << 16); }
__device__ float Second(uint32_t pair) { return __uint_as_float(pair & 0xffff0000u); }

// Zeros where the addend or the rows end.
template <int kSteps>
__device__ void Stage(const LowRankAddend& from, int64_t row, int64_t rows, LowRows<kSteps>& to) {
  for (int i = threadIdx.x; i < kRows * kSteps * kStep; i += kThreads) {
    const int at = i / (kSteps * kStep), rank = i % (kSteps * kStep);
    const bool in = rank < from.rank && row + at < rows;
    to[rank / kStep][at][rank % kStep] =
        in ? static_cast<const Bf16*>(from.low)[(row + at) * from.low_row + rank] : Narrow<Bf16>(0);
  }
}

// The thread's part of the matrix's columns. Lane 4 g + t of a tensor core's product has the ranks 2 t and
// 2 t + 1 of column g, and receives columns 2 t and 2 t + 1 of rows g and g + 8. The columns of the four
// products are interleaved so that a thread receives eight adjacent columns: column 2 t + e of product p is
// column 8 t + 2 p + e of the warp.
template <int kSteps>
struct Addend {
  uint32_t matrix[kProducts][kSteps];
  const LowRows<kSteps>& low;

  __device__ Addend(const LowRankAddend& from, int64_t begin, int64_t width, const LowRows<kSteps>& rows)
      : low(rows) {
    const int lane = threadIdx.x % 32, of_product = lane / 4, pair = lane % 4;
    const auto element = [&](int64_t column, int rank) {
      if (column >= width || rank >= from.rank) return Narrow<Bf16>(0);
      return static_cast<const Bf16*>(from.matrix)[column * from.matrix_row + rank * from.matrix_rank];
    };
    for (int product = 0; product < kProducts; ++product) {
      const int64_t column = begin + of_product / 2 * 8 + 2 * product + of_product % 2;
      for (int step = 0; step < kSteps; ++step) {
        const int rank = step * kStep + 2 * pair;
        matrix[product][step] = Joined(element(column, rank), element(column, rank + 1));
      }
    }
  }

  // sum: columns 2 product and 2 product + 1 of the thread's eight, in its first and then its second row.
  __device__ void AddTo(float (&sum)[4], int tile, int product) const {
    const int row = tile * kTileRows + threadIdx.x % 32 / 4, pair = threadIdx.x % 4;
    for (int step = 0; step < kSteps; ++step) {
      const auto ranks = [&](int of) { return reinterpret_cast<const uint32_t*>(low[step][of])[pair]; };
      asm("mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, "
          "%3};"
          : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
          : "r"(ranks(row)), "r"(ranks(row + 8)), "r"(matrix[product][step]));
    }
  }
};

// Eight columns of two rows, as pairs of columns.
struct Part {
  Pack<uint32_t, kProducts> at[2];

  __device__ void Get(int product, float (&to)[4]) const {
    for (int i = 0; i < 4; ++i) to[i] = (i % 2 == 0 ? First : Second)(at[i / 2].at[product]);
  }
  __device__ void Set(int product, const float (&from)[4]) {
    for (int i = 0; i < 2; ++i) {
      const __nv_bfloat162 pair = __floats2bfloat162_rn(from[2 * i], from[2 * i + 1]);
      at[i].at[product] = reinterpret_cast<const uint32_t&>(pair);
    }
  }
};

template <int kSteps, bool kBackward>
__global__ void __launch_bounds__(kThreads) Swiglu(AdaptedSwigluArgs args) {
  __shared__ alignas(16) LowRows<kSteps> low[kBackward ? 3 : 2];
  const int64_t first_row = static_cast<int64_t>(blockIdx.y) * kRows;
  Stage<kSteps>(args.gate, first_row, args.rows, low[0]);
  Stage<kSteps>(args.up, first_row, args.rows, low[1]);
  if constexpr (kBackward) Stage<kSteps>(args.grad_product, first_row, args.rows, low[2]);
  const int64_t begin = (static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32) * kColumns;
  const Addend<kSteps> to_gate(args.gate, begin, args.width, low[0]),
      to_up(args.up, begin, args.width, low[1]);
  const Addend<kSteps> to_grad(args.grad_product, begin, args.width, low[kBackward ? 2 : 0]);
  __syncthreads();
  auto* const gate_up = static_cast<uint32_t*>(args.gate_up);
  auto* const product = static_cast<uint32_t*>(args.product);
  const int64_t packs = args.width / 8, column = begin / 8 + threadIdx.x % 4;
  // All lanes take part in the products, also those without a row or a column.
#pragma unroll 1
  for (int tile = 0; tile < kRows / kTileRows; ++tile) {
    const int64_t row = first_row + tile * kTileRows + threadIdx.x % 32 / 4;
    Part gate = {}, up = {}, out = {};
    for (int i = 0; i < 2; ++i) {
      if (row + 8 * i >= args.rows || column >= packs) continue;
      gate.at[i] = Load<uint32_t, 4>(gate_up, 2 * (row + 8 * i) * packs + column);
      up.at[i] = Load<uint32_t, 4>(gate_up, (2 * (row + 8 * i) + 1) * packs + column);
      if (kBackward) out.at[i] = Load<uint32_t, 4>(product, (row + 8 * i) * packs + column);
    }
#pragma unroll
    for (int p = 0; p < kProducts; ++p) {
      float g[4], u[4], d[4];
      gate.Get(p, g);
      up.Get(p, u);
      to_gate.AddTo(g, tile, p);
      to_up.AddTo(u, tile, p);
      if constexpr (kBackward) {
        out.Get(p, d);
        to_grad.AddTo(d, tile, p);
      }
      for (int i = 0; i < 4; ++i) {
        if constexpr (kBackward) {
          const SwigluMade made = SwigluBackwardOf(d[i], g[i], u[i]);
          d[i] = made.product;
          g[i] = made.gate;
          u[i] = made.up;
        } else {
          d[i] = SwigluOf(g[i], u[i]);
        }
      }
      out.Set(p, d);
      if constexpr (kBackward) {
        gate.Set(p, g);
        up.Set(p, u);
      }
    }
    for (int i = 0; i < 2; ++i) {
      if (row + 8 * i >= args.rows || column >= packs) continue;
      Store(product, (row + 8 * i) * packs + column, out.at[i]);
      if constexpr (kBackward) {
        Store(gate_up, 2 * (row + 8 * i) * packs + column, gate.at[i]);
        Store(gate_up, (2 * (row + 8 * i) + 1) * packs + column, up.at[i]);
      }
    }
  }
}

template <bool kBackward>
void Launch(const AdaptedSwigluArgs& args, Stream stream) {
  if (args.rows == 0 || args.width == 0) return;
  const int64_t rank = std::max({args.gate.rank, args.up.rank, args.grad_product.rank});
  if (!TakesAdaptedSwiglu(args.width, rank, DType::kBf16) ||
      !Packs<Bf16>(args.width, {args.gate_up, args.product}))
    throw std::logic_error("adapted swiglu: unsupported sizes or addresses");
  const dim3 blocks(BlocksOf(args.width, kWarps * kColumns), BlocksOf(args.rows, kRows));
  const auto kernel = rank <= 8    ? Swiglu<1, kBackward>
                      : rank <= 16 ? Swiglu<2, kBackward>
                                   : Swiglu<4, kBackward>;
  kernel<<<blocks, kThreads, 0, stream>>>(args);
}

}  // namespace

void AdaptedSwigluForward(const AdaptedSwigluArgs& args, Stream stream) {
  Launch</*kBackward=*/false>(args, stream);
  CheckLaunch("adapted swiglu forward");
}

void AdaptedSwigluBackward(const AdaptedSwigluArgs& args, Stream stream) {
  Launch</*kBackward=*/true>(args, stream);
  CheckLaunch("adapted swiglu backward");
}

}  // namespace fsdpd::kernels
