#include <algorithm>

#include "fsdp/kernels/fill_normals.h"
#include "fsdp/kernels/pack.cuh"

namespace fsdpd::kernels {
namespace {

constexpr int kThreads = 256;
// Sixteen blocks per multiprocessor of an H100.
constexpr unsigned kMaxBlocks = 132 * 16;

// Each thread draws one number at a time. That computes every Box-Muller pair twice and every Philox counter
// four times, yet a GPU draws 8e9 numbers in a fraction of a second; stores are coalesced for any begin and
// shard.
template <bool kSplitFp32>
__global__ void Fill(FillNormalsArgs args) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < args.elements;
       i += stride) {
    const int64_t element = FullElement(args.slice, args.begin + i);
    const float value = NumberAt(args.numbers, static_cast<uint64_t>(element));
    if constexpr (kSplitFp32) {
      const HalfBits halves = SplitBits(__float_as_uint(value));
      args.high[i] = halves.high;
      args.low[i] = halves.low;
    } else {
      args.values[i] = value;
    }
  }
}

}  // namespace

void FillNormals(const FillNormalsArgs& args, Stream stream) {
  if (args.elements == 0) return;
  const unsigned blocks =
      static_cast<unsigned>(std::min<int64_t>((args.elements + kThreads - 1) / kThreads, kMaxBlocks));
  const auto kernel = args.values == nullptr ? Fill<true> : Fill<false>;
  kernel<<<blocks, kThreads, 0, stream>>>(args);
  CheckLaunch("initial values");
}

}  // namespace fsdpd::kernels
