#include "fsdp/kernels/pack.cuh"
#include "fsdp/kernels/sum_parts.h"

namespace fsdpd::kernels {
namespace {

constexpr int kThreads = 256;

template <typename T, int N>
__global__ void Sum(const T* parts, int ranks, int64_t count, float* sum) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= count / N) return;
  Pack<float, N> total = {};
  for (int rank = 0; rank < ranks; ++rank) {
    const auto part = Load<T, N>(parts + rank * count, i);
    for (int k = 0; k < N; ++k) total.at[k] += Wide(part.at[k]);
  }
  Store(sum, i, total);
}

}  // namespace

void SumParts(const void* parts, int ranks, int64_t count, DType type, float* sum, Stream stream) {
  if (count == 0) return;
  WithType(type, [&](auto of_type) {
    using T = decltype(of_type);
    constexpr int kNumbers = 4;  // As fp32 a whole pack of 16 bytes.
    const bool packs = count % kNumbers == 0 && reinterpret_cast<uintptr_t>(parts) % 16 == 0 &&
                       reinterpret_cast<uintptr_t>(sum) % 16 == 0;
    const auto kernel = packs ? Sum<T, kNumbers> : Sum<T, 1>;
    kernel<<<BlocksOf(packs ? count / kNumbers : count, kThreads), kThreads, 0, stream>>>(
        static_cast<const T*>(parts), ranks, count, sum);
  });
  CheckLaunch("sum of parts");
}

}  // namespace fsdpd::kernels
