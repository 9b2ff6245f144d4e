#include <algorithm>

#include "fsdp/kernels/pack.cuh"
#include "fsdp/kernels/rotary.h"

namespace fsdpd::kernels {
namespace {

constexpr int kMaxThreads = 512;

// A block is a token: its heads share a row of the tables. A thread takes a pack of the first half and the
// one that it turns with.
template <typename T, int N>
__global__ void RotateTokens(RotaryArgs args, float direction) {
  const int64_t token = blockIdx.x;
  const int64_t row = token % args.sequence * args.half;
  const int packs = args.half / N;
  for (int i = threadIdx.x; i < (args.heads + args.kv_heads) * packs; i += blockDim.x) {
    const int head = i / packs, pack = i % packs;
    T* x = head < args.heads
               ? static_cast<T*>(args.q) + (token * args.heads + head) * 2 * args.half
               : static_cast<T*>(args.k) + (token * args.kv_heads + head - args.heads) * 2 * args.half;
    auto first = Load<T, N>(x, pack), second = Load<T, N>(x, packs + pack);
    for (int k = 0; k < N; ++k) {
      const float cos = args.cos[row + pack * N + k], sin = direction * args.sin[row + pack * N + k];
      const float a = Wide(first.at[k]), b = Wide(second.at[k]);
      first.at[k] = Narrow<T>(a * cos - b * sin);
      second.at[k] = Narrow<T>(b * cos + a * sin);
    }
    Store(x, pack, first);
    Store(x, packs + pack, second);
  }
}

}  // namespace

void Rotate(const RotaryArgs& args, float direction, Stream stream) {
  if (args.tokens == 0) return;
  WithType(args.type, [&](auto of_type) {
    using T = decltype(of_type);
    const bool packs = Packs<T>(args.half, {args.q, args.k});
    const int items = (args.heads + args.kv_heads) * (packs ? args.half / kPack<T> : args.half);
    const int threads = std::min(kMaxThreads, (items + 31) / 32 * 32);
    const auto kernel = packs ? RotateTokens<T, kPack<T>> : RotateTokens<T, 1>;
    kernel<<<static_cast<unsigned>(args.tokens), threads, 0, stream>>>(args, direction);
  });
  CheckLaunch("rotary");
}

}  // namespace fsdpd::kernels
