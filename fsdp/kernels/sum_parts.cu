#include "fsdp/kernels/pack.cuh"
#include "fsdp/kernels/sum_parts.h"

namespace fsdpd::kernels {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kNumbers = 4;  // A 16-byte pack of fp32.

// Thread 0 stores the block-wide sum, computed in a fixed order.
__device__ void StoreBlockSum(float x, float* to) {
  __shared__ float of_warp[kWarps];
  x = WarpSum(x);
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = x;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int warp = 1; warp < kWarps; ++warp) x += of_warp[warp];
  *to = x;
}

// Each block sums kSquaresPerPart elements.
template <typename T, typename S, int N>
__global__ void Sum(SumPartsArgs args) {
  constexpr int64_t kPacks = kSquaresPerPart / N;
  const T* const parts = static_cast<const T*>(args.parts);
  const T* const own = static_cast<const T*>(args.own);
  const S* const addend = static_cast<const S*>(args.addend);
  S* const sum = static_cast<S*>(args.sum);
  float squares = 0;
#pragma unroll
  for (int64_t pack = 0; pack < kPacks; pack += kThreads) {
    const int64_t i = blockIdx.x * kPacks + pack + threadIdx.x;
    if (i >= args.count / N) break;
    Pack<float, N> total = {};
    for (int rank = 0; rank < args.ranks; ++rank) {
      const bool is_own = rank == args.rank && own != nullptr;
      const auto part = Load<T, N>(is_own ? own : parts + rank * args.count, i);
      for (int k = 0; k < N; ++k) total.at[k] += Wide(part.at[k]);
    }
    Pack<S, N> out;
    if (addend != nullptr) out = Load<S, N>(addend, i);
    for (int k = 0; k < N; ++k) {
      out.at[k] = Narrow<S>(addend != nullptr ? Wide(out.at[k]) + total.at[k] : total.at[k]);
      squares += Wide(out.at[k]) * Wide(out.at[k]);
    }
    Store(sum, i, out);
  }
  if (args.squares != nullptr) StoreBlockSum(squares, args.squares + blockIdx.x);
}

template <typename T, typename S>
void Launch(const SumPartsArgs& args, Stream stream) {
  const auto whole = [](const void* address, size_t bytes) {
    return reinterpret_cast<uintptr_t>(address) % (kNumbers * bytes) == 0;
  };
  const bool packs = args.count % kNumbers == 0 && whole(args.parts, sizeof(T)) &&
                     whole(args.own, sizeof(T)) && whole(args.addend, sizeof(S)) &&
                     whole(args.sum, sizeof(S));
  const auto kernel = packs ? Sum<T, S, kNumbers> : Sum<T, S, 1>;
  kernel<<<static_cast<unsigned>(SquaresOf(args.count)), kThreads, 0, stream>>>(args);
}

}  // namespace

void SumParts(const SumPartsArgs& args, Stream stream) {
  if (args.count == 0) return;
  WithType(args.type, [&](auto of_part) {
    WithType(args.sum_type, [&](auto of_sum) { Launch<decltype(of_part), decltype(of_sum)>(args, stream); });
  });
  CheckLaunch("sum of parts");
}

}  // namespace fsdpd::kernels
