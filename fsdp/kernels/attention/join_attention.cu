#include "fsdp/kernels/attention/join_attention.h"
#include "fsdp/kernels/pack.cuh"

namespace fsdpd::kernels {
namespace {

constexpr int kThreads = 256;

// Each thread merges N elements of a head.
template <typename T, int N>
__global__ void Join(JoinAttentionArgs args) {
  const int64_t packs = args.head_size / N;
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t row = i / packs, of_row = i % packs;
  if (row >= args.samples * args.tokens * args.heads) return;
  const int64_t head = row % args.heads, token = row / args.heads % args.tokens;
  const int64_t sample = row / (args.heads * args.tokens);
  const int64_t at = (sample * args.heads + head) * args.tokens + token;
  const float first = args.first_log_sum_exp[at], second = args.second_log_sum_exp[at];
  const float largest = fmaxf(first, second);
  const float of_first = __expf(first - largest), of_second = __expf(second - largest);
  const float share = of_first / (of_first + of_second);
  if (of_row == 0) args.log_sum_exp[at] = largest + logf(of_first + of_second);
  const auto a = Load<T, N>(static_cast<const T*>(args.first), i);
  const auto b = Load<T, N>(static_cast<const T*>(args.second), i);
  Pack<T, N> out;
  for (int k = 0; k < N; ++k) out.at[k] = Narrow<T>(share * Wide(a.at[k]) + (1 - share) * Wide(b.at[k]));
  const int64_t in_sample = i - sample * args.tokens * args.heads * packs;
  Store(static_cast<T*>(args.out) + sample * args.out_stride, in_sample, out);
}

}  // namespace

void JoinAttention(const JoinAttentionArgs& args, Stream stream) {
  const int64_t numbers = args.samples * args.tokens * args.heads * args.head_size;
  if (numbers == 0) return;
  WithType(args.type, [&](auto of) {
    using T = decltype(of);
    const bool packs =
        Packs<T>(args.head_size, {args.first, args.second, args.out}) && args.out_stride % kPack<T> == 0;
    if (packs) {
      Join<T, kPack<T>><<<BlocksOf(numbers / kPack<T>, kThreads), kThreads, 0, stream>>>(args);
    } else {
      Join<T, 1><<<BlocksOf(numbers, kThreads), kThreads, 0, stream>>>(args);
    }
  });
  CheckLaunch("join of attentions");
}

}  // namespace fsdpd::kernels
