#include "fsdp/kernels/experts/plain_grouped_product.h"
#include "fsdp/kernels/pack.cuh"

namespace fsdpd::kernels {
namespace {

constexpr int kTile = 64;     // Rows and columns of the result per block.
constexpr int kDepth = 16;    // Elements of the summed dimension at a time.
constexpr int kOfThread = 4;  // Rows and columns of the result per thread.
constexpr int kSide = kTile / kOfThread;
constexpr int kThreads = kSide * kSide;

// Computes one tile of left x right, summed over `depth`: left(row, d) and right(d, column) return fp32
// elements (zero outside of their matrices), and store(row, column, sum) takes the results.
template <typename Left, typename Right, typename Keep>
__device__ void MakeTile(int64_t depth, bool depth_is_inner, Left left, Right right, Keep store) {
  __shared__ float of_left[kDepth][kTile + 1], of_right[kDepth][kTile + 1];
  const int thread = static_cast<int>(threadIdx.x), row = thread / kSide, column = thread % kSide;
  float sums[kOfThread][kOfThread] = {};
  for (int64_t begin = 0; begin < depth; begin += kDepth) {
    for (int i = thread; i < kDepth * kTile; i += kThreads) {
      // Neighboring threads load neighboring addresses.
      const int d = depth_is_inner ? i % kDepth : i / kTile, m = depth_is_inner ? i / kDepth : i % kTile;
      of_left[d][m] = begin + d < depth ? left(m, begin + d) : 0.0f;
      of_right[d][m] = begin + d < depth ? right(begin + d, m) : 0.0f;
    }
    __syncthreads();
    for (int d = 0; d < kDepth; ++d) {
      for (int i = 0; i < kOfThread; ++i) {
        for (int j = 0; j < kOfThread; ++j)
          sums[i][j] += of_left[d][row + i * kSide] * of_right[d][column + j * kSide];
      }
    }
    __syncthreads();
  }
  for (int i = 0; i < kOfThread; ++i) {
    for (int j = 0; j < kOfThread; ++j) store(row + i * kSide, column + j * kSide, sums[i][j]);
  }
}

struct RowTile {
  int expert;
  int64_t first;
  int64_t end;  // End of the expert's rows.
};

// The n-th row tile, over all experts in order. Past the last one it is empty.
__device__ RowTile FindTile(const GroupedProductArgs& args, int64_t n) {
  int64_t begin = 0;
  for (int e = 0; e < args.experts; ++e) {
    const int64_t end = args.ends[e], tiles = (end - begin + kTile - 1) / kTile;
    if (n < tiles) return {e, begin + n * kTile, end};
    n -= tiles;
    begin = end;
  }
  return {0, 0, 0};
}

// Forward: tiles of rows x outputs. Backward: tiles of rows x inputs.
template <typename T, bool is_forward>
__global__ void ByRow(GroupedProductArgs args) {
  __shared__ RowTile tile;
  if (threadIdx.x == 0) tile = FindTile(args, blockIdx.x);
  __syncthreads();
  const int64_t rows = tile.end - tile.first, column_begin = static_cast<int64_t>(blockIdx.y) * kTile;
  if (rows <= 0) return;
  const T* const matrix = static_cast<const T*>(args.matrix) + tile.expert * args.outputs * args.inputs;
  T* const x = static_cast<T*>(args.x) + tile.first * args.x_stride;
  T* const y = static_cast<T*>(args.y) + tile.first * args.y_stride;
  if constexpr (is_forward) {
    MakeTile(
        args.inputs, true, [&](int m, int64_t d) { return m < rows ? Wide(x[m * args.x_stride + d]) : 0.0f; },
        [&](int64_t d, int n) {
          return column_begin + n < args.outputs ? Wide(matrix[(column_begin + n) * args.inputs + d]) : 0.0f;
        },
        [&](int m, int n, float sum) {
          if (m < rows && column_begin + n < args.outputs)
            y[m * args.y_stride + column_begin + n] = Narrow<T>(sum);
        });
  } else {
    MakeTile(
        args.outputs, true,
        [&](int m, int64_t d) { return m < rows ? Wide(y[m * args.y_stride + d]) : 0.0f; },
        [&](int64_t d, int n) {
          return column_begin + n < args.inputs ? Wide(matrix[d * args.inputs + column_begin + n]) : 0.0f;
        },
        [&](int m, int n, float sum) {
          if (m < rows && column_begin + n < args.inputs)
            x[m * args.x_stride + column_begin + n] = Narrow<T>(sum);
        });
  }
}

template <typename T>
__global__ void ByExpert(GroupedProductArgs args) {
  const int64_t expert = blockIdx.z, first = expert > 0 ? args.ends[expert - 1] : 0;
  const int64_t out_begin = static_cast<int64_t>(blockIdx.x) * kTile,
                in_begin = static_cast<int64_t>(blockIdx.y) * kTile;
  T* const matrix = static_cast<T*>(args.matrix) + expert * args.outputs * args.inputs;
  T* const x = static_cast<T*>(args.x) + first * args.x_stride;
  T* const y = static_cast<T*>(args.y) + first * args.y_stride;
  MakeTile(
      args.ends[expert] - first, false,
      [&](int m, int64_t d) {
        return out_begin + m < args.outputs ? Wide(y[d * args.y_stride + out_begin + m]) : 0.0f;
      },
      [&](int64_t d, int n) {
        return in_begin + n < args.inputs ? Wide(x[d * args.x_stride + in_begin + n]) : 0.0f;
      },
      [&](int m, int n, float sum) {
        if (out_begin + m < args.outputs && in_begin + n < args.inputs)
          matrix[(out_begin + m) * args.inputs + in_begin + n] = Narrow<T>(sum);
      });
}

}  // namespace

void PlainGroupedProduct(GroupedForm form, const GroupedProductArgs& args, Stream stream) {
  if (args.experts == 0 || args.inputs == 0 || args.outputs == 0) return;
  // Each expert may end with a partial tile.
  const unsigned row_tiles = BlocksOf(args.rows, kTile) + static_cast<unsigned>(args.experts);
  const unsigned of_inputs = BlocksOf(args.inputs, kTile), of_outputs = BlocksOf(args.outputs, kTile);
  WithType(args.type, [&](auto of_type) {
    using T = decltype(of_type);
    switch (form) {
      case GroupedForm::kForward:
        return ByRow<T, true><<<dim3(row_tiles, of_outputs), kThreads, 0, stream>>>(args);
      case GroupedForm::kBackward:
        return ByRow<T, false><<<dim3(row_tiles, of_inputs), kThreads, 0, stream>>>(args);
      case GroupedForm::kWeights:
        return ByExpert<T>
            <<<dim3(of_outputs, of_inputs, static_cast<unsigned>(args.experts)), kThreads, 0, stream>>>(args);
    }
  });
  CheckLaunch("plain grouped product");
}

}  // namespace fsdpd::kernels
