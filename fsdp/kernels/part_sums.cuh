// The second pass of a sum over many rows: adds the partial sums that the blocks of a kernel have written, in
// an order that depends only on shapes.
#pragma once

#include "fsdp/kernels/pack.cuh"

namespace fsdpd::kernels {

struct PartsArgs {
  const float* parts;  // [rows x width]
  int64_t rows;
  int64_t width;
  void* into;  // [width] of type `type`.
  DType type;
  bool accumulate;  // Add to `into` instead of overwriting it.
};

// A block sums kPartColumns columns, with the rows divided into kPartSlices.
constexpr int kPartColumns = 32;
constexpr int kPartSlices = 16;

template <typename T>
__global__ void AddUp(PartsArgs args) {
  __shared__ float of_slice[kPartSlices][kPartColumns];
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kPartColumns + threadIdx.x;
  float sum = 0;
  if (column < args.width) {
    for (int64_t row = threadIdx.y; row < args.rows; row += kPartSlices)
      sum += args.parts[row * args.width + column];
  }
  of_slice[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || column >= args.width) return;
  for (int slice = 1; slice < kPartSlices; ++slice) sum += of_slice[slice][threadIdx.x];
  T& into = static_cast<T*>(args.into)[column];
  into = Narrow<T>(args.accumulate ? Wide(into) + sum : sum);
}

inline void AddUpParts(const PartsArgs& args, cudaStream_t stream) {
  WithType(args.type, [&](auto of_type) {
    AddUp<decltype(of_type)>
        <<<BlocksOf(args.width, kPartColumns), dim3(kPartColumns, kPartSlices), 0, stream>>>(args);
  });
  CheckLaunch("sum of parts");
}

}  // namespace fsdpd::kernels
