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
template <typename Store>
__global__ void Fill(FillNormalsArgs args, Store store) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < args.elements;
       i += stride) {
    const int64_t element = FullElement(args.slice, args.begin + i);
    store(i, NumberAt(args.numbers, static_cast<uint64_t>(element)));
  }
}

struct StoreSplit {
  uint16_t* high;
  uint16_t* low;

  __device__ void operator()(int64_t i, float value) const {
    const HalfBits halves = SplitBits(__float_as_uint(value));
    high[i] = halves.high;
    low[i] = halves.low;
  }
};

template <typename T>
struct StoreRounded {
  T* values;

  __device__ void operator()(int64_t i, float value) const { values[i] = Narrow<T>(value); }
};

}  // namespace

void FillNormals(const FillNormalsArgs& args, Stream stream) {
  if (args.elements == 0) return;
  const unsigned blocks =
      static_cast<unsigned>(std::min<int64_t>((args.elements + kThreads - 1) / kThreads, kMaxBlocks));
  if (args.low != nullptr) {
    Fill<<<blocks, kThreads, 0, stream>>>(args, StoreSplit{static_cast<uint16_t*>(args.values), args.low});
  } else {
    WithType(args.type, [&](auto type) {
      using T = decltype(type);
      Fill<<<blocks, kThreads, 0, stream>>>(args, StoreRounded<T>{static_cast<T*>(args.values)});
    });
  }
  CheckLaunch("initial values");
}

}  // namespace fsdpd::kernels
