#include <algorithm>

#include "fsdp/kernels/attention/rotary.h"
#include "fsdp/kernels/pack.cuh"

namespace fsdpd::kernels {
namespace {

constexpr int kMaxThreads = 512;

// One block per token, whose heads share a row of the tables. Each thread rotates a pack of the first half
// with its counterpart of the second half.
template <typename T, int N>
__global__ void RotateTokens(RotaryArgs args, float direction) {
  const int64_t token = blockIdx.x;
  const HeadAngles& angles = args.angles;
  const int64_t position = angles.positions != nullptr ? angles.positions[token] : token % angles.sequence;
  const int64_t row = position * angles.half;
  const int packs = angles.half / N;
  for (int i = threadIdx.x; i < (args.q.heads + args.k.heads) * packs; i += blockDim.x) {
    const int number = i / packs, pack = i % packs;
    const bool is_q = number < args.q.heads;
    const HeadRows& rows = is_q ? args.q : args.k;
    const int64_t head = static_cast<int64_t>(is_q ? number : number - args.q.heads) * 2 * angles.half;
    const T* from = static_cast<const T*>(rows.from) + token * rows.from_row + head;
    T* to = static_cast<T*>(rows.to) + token * rows.to_row + head;
    auto first = Load<T, N>(from, pack), second = Load<T, N>(from, packs + pack);
    for (int k = 0; k < N; ++k) {
      const float cos = angles.cos[row + pack * N + k], sin = direction * angles.sin[row + pack * N + k];
      const float a = Wide(first.at[k]), b = Wide(second.at[k]);
      first.at[k] = Narrow<T>(a * cos - b * sin);
      second.at[k] = Narrow<T>(b * cos + a * sin);
    }
    Store(to, pack, first);
    Store(to, packs + pack, second);
  }
}

template <typename T>
bool RowsPack(const HeadRows& rows) {
  return rows.from_row % kPack<T> == 0 && rows.to_row % kPack<T> == 0;
}

}  // namespace

void Rotate(const RotaryArgs& args, float direction, Stream stream) {
  if (args.angles.tokens == 0) return;
  WithType(args.angles.type, [&](auto of_type) {
    using T = decltype(of_type);
    const bool packs = Packs<T>(args.angles.half, {args.q.from, args.q.to, args.k.from, args.k.to}) &&
                       RowsPack<T>(args.q) && RowsPack<T>(args.k);
    const int items =
        (args.q.heads + args.k.heads) * (packs ? args.angles.half / kPack<T> : args.angles.half);
    const int threads = std::min(kMaxThreads, (items + 31) / 32 * 32);
    const auto kernel = packs ? RotateTokens<T, kPack<T>> : RotateTokens<T, 1>;
    kernel<<<static_cast<unsigned>(args.angles.tokens), threads, 0, stream>>>(args, direction);
  });
  CheckLaunch("rotary");
}

}  // namespace fsdpd::kernels
