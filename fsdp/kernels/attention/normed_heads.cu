#include <algorithm>
#include <initializer_list>

#include "fsdp/kernels/attention/normed_heads.h"
#include "fsdp/kernels/pack.cuh"
#include "fsdp/kernels/part_sums.cuh"

namespace fsdpd::kernels {
namespace {

constexpr int kForwardMostThreads = 512;
constexpr int kBackwardThreads = 256;

// A lane's part of a head: a pack of the first half, and the pack of the second half that it is rotated with.
template <typename T>
struct HeadHalves {
  Pack<T, kPack<T>> first, second;
};

template <typename T>
__device__ HeadHalves<T> LoadHalves(const void* from, int64_t begin, int pack, int packs) {
  const T* const head = static_cast<const T*>(from) + begin;
  return {Load<T, kPack<T>>(head, pack), Load<T, kPack<T>>(head, packs + pack)};
}

template <typename T>
__device__ void StoreHalves(void* to, int64_t begin, int pack, int packs, const HeadHalves<T>& values) {
  T* const head = static_cast<T*>(to) + begin;
  Store(head, pack, values.first);
  Store(head, packs + pack, values.second);
}

// One pack of the cosine and sine tables, at a token's position.
template <int N>
struct Turn {
  float cos[N], sin[N];
};

template <int N>
__device__ Turn<N> LoadTransposed(const HeadAngles& angles, int64_t token, int pack) {
  const int64_t position = angles.positions != nullptr ? angles.positions[token] : token % angles.sequence;
  Turn<N> turn;
  for (int n = 0; n < N; n += 4) {
    const auto cos = Load<float, 4>(angles.cos + position * angles.half + pack * N, n / 4);
    const auto sin = Load<float, 4>(angles.sin + position * angles.half + pack * N, n / 4);
    for (int i = 0; i < 4; ++i) {
      turn.cos[n + i] = cos.at[i];
      turn.sin[n + i] = sin.at[i];
    }
  }
  return turn;
}

// One block per token, whose heads share a row of the tables; kLanes lanes per head.
template <typename T, int kLanes>
__global__ void Forward(NormedHeadsArgs args) {
  constexpr int N = kPack<T>;
  const int packs = args.angles.half / N, pack = static_cast<int>(threadIdx.x) % kLanes;
  const int heads = args.q.rows.heads + args.k.rows.heads, stride = static_cast<int>(blockDim.x) / kLanes;
  const int64_t token = blockIdx.x;
  Turn<N> turn;
  if (pack < packs) turn = LoadTransposed<N>(args.angles, token, pack);
  const int first = static_cast<int>(threadIdx.x) / 32 * 32 /
                    kLanes;  // Per warp, so that all of its lanes loop equally often.
  for (int begin = first; begin < heads; begin += stride) {
    const int number = begin + static_cast<int>(threadIdx.x) % 32 / kLanes;
    const bool has = number < heads && pack < packs, is_q = number < args.q.rows.heads;
    const NormedHeads& of = is_q ? args.q : args.k;
    const int head = is_q ? number : number - args.q.rows.heads;
    HeadHalves<T> x;
    float squares = 0;
    if (has) {
      x = LoadHalves<T>(of.rows.from, token * of.rows.from_row + head * 2 * args.angles.half, pack, packs);
      for (int n = 0; n < N; ++n) {
        squares += Wide(x.first.at[n]) * Wide(x.first.at[n]) + Wide(x.second.at[n]) * Wide(x.second.at[n]);
      }
    }
    const float mean = LanesSum<kLanes>(squares) / static_cast<float>(2 * args.angles.half);
    const float rstd = rsqrtf(mean + static_cast<float>(args.epsilon));
    if (!has) continue;
    if (pack == 0) of.rstd[token * of.rows.heads + head] = rstd;
    const auto weight = LoadHalves<T>(of.weight, 0, pack, packs);
    for (int n = 0; n < N; ++n) {
      const float a = Wide(x.first.at[n]) * rstd * Wide(weight.first.at[n]);
      const float b = Wide(x.second.at[n]) * rstd * Wide(weight.second.at[n]);
      x.first.at[n] = Narrow<T>(a * turn.cos[n] - b * turn.sin[n]);
      x.second.at[n] = Narrow<T>(b * turn.cos[n] + a * turn.sin[n]);
    }
    StoreHalves<T>(of.rows.to, token * of.rows.to_row + head * 2 * args.angles.half, pack, packs, x);
  }
}

// What a lane reads of a head in the backward.
template <typename T>
struct HeadPart {
  HeadHalves<T> grad, x;
  float rstd;
};

template <typename T>
__device__ HeadPart<T> LoadPart(const NormedHeadsGrad& of, int half, unsigned item, int pack, int packs) {
  const unsigned heads = of.grad.heads, token = item / heads, head = item % heads;
  const int64_t in_row = static_cast<int64_t>(head) * 2 * half;
  return {LoadHalves<T>(of.grad.from, token * of.grad.from_row + in_row, pack, packs),
          LoadHalves<T>(of.x, token * of.grad.to_row + in_row, pack, packs), of.rstd[item]};
}

// A lane's part of the weight's gradient, summed over all heads it has processed.
template <int N>
struct WeightSums {
  float first[N] = {}, second[N] = {};
};

// Sums over the lanes that hold the same pack of other heads, in lane order.
template <int N, int kLanes>
__device__ void StoreWeightSums(const WeightSums<N>& sums, int packs, int half, float* part) {
  __shared__ float of_thread[kBackwardThreads][N];
  const int pack = static_cast<int>(threadIdx.x);
  const auto add_up = [&](const float(&own)[N], float* into) {
    for (int n = 0; n < N; ++n) of_thread[threadIdx.x][n] = own[n];
    __syncthreads();
    if (pack < packs) {
      for (int n = 0; n < N; ++n) {
        float sum = 0;
        for (int lanes = 0; lanes < kBackwardThreads; lanes += kLanes) sum += of_thread[lanes + pack][n];
        into[pack * N + n] = sum;
      }
    }
    __syncthreads();
  };
  add_up(sums.first, part);
  add_up(sums.second, part + half);
}

// Blocks with y = 0 process queries, those with y = 1 keys; heads of all tokens are distributed cyclically.
// The next head is loaded while the current one is computed.
template <typename T, int kLanes>
__global__ void __launch_bounds__(kBackwardThreads, 2) Backward(NormedHeadsBackwardArgs args) {
  constexpr int N = kPack<T>;
  const NormedHeadsGrad& of = blockIdx.y == 0 ? args.q : args.k;
  const int half = args.angles.half, packs = half / N, pack = static_cast<int>(threadIdx.x) % kLanes;
  const unsigned items = static_cast<unsigned>(args.angles.tokens) * of.grad.heads;
  const unsigned stride = gridDim.x * (kBackwardThreads / kLanes);
  HeadHalves<T> weight;
  if (pack < packs) weight = LoadHalves<T>(of.weight, 0, pack, packs);
  WeightSums<N> sums;
  HeadPart<T> next;
  unsigned item = blockIdx.x * (kBackwardThreads / kLanes) + threadIdx.x / kLanes;
  if (item < items && pack < packs) next = LoadPart<T>(of, half, item, pack, packs);
  // All lanes of a warp loop as often as the lane with the lowest item, since the shuffles need all of them.
  for (unsigned first = item - threadIdx.x % 32 / kLanes; first < items; first += stride, item += stride) {
    const bool has = item < items && pack < packs;
    HeadPart<T> part = next;
    if (item + stride < items && pack < packs) next = LoadPart<T>(of, half, item + stride, pack, packs);
    float a[N], b[N], radial = 0;  // The gradient of the norm's output.
    if (has) {
      const Turn<N> turn = LoadTransposed<N>(args.angles, item / of.grad.heads, pack);
      for (int n = 0; n < N; ++n) {
        const float f = Wide(part.grad.first.at[n]), s = Wide(part.grad.second.at[n]);
        const float unit_f = Wide(part.x.first.at[n]) * part.rstd,
                    unit_s = Wide(part.x.second.at[n]) * part.rstd;
        a[n] = f * turn.cos[n] + s * turn.sin[n];
        b[n] = s * turn.cos[n] - f * turn.sin[n];
        sums.first[n] += a[n] * unit_f;
        sums.second[n] += b[n] * unit_s;
        a[n] *= Wide(weight.first.at[n]);
        b[n] *= Wide(weight.second.at[n]);
        radial += a[n] * unit_f + b[n] * unit_s;
      }
    }
    const float mean = LanesSum<kLanes>(radial) / static_cast<float>(2 * half);
    if (!has) continue;
    for (int n = 0; n < N; ++n) {
      const float unit_f = Wide(part.x.first.at[n]) * part.rstd,
                  unit_s = Wide(part.x.second.at[n]) * part.rstd;
      part.grad.first.at[n] = Narrow<T>(part.rstd * (a[n] - unit_f * mean));
      part.grad.second.at[n] = Narrow<T>(part.rstd * (b[n] - unit_s * mean));
    }
    const unsigned token = item / of.grad.heads, head = item % of.grad.heads;
    StoreHalves<T>(of.grad.to, token * of.grad.to_row + static_cast<int64_t>(head) * 2 * half, pack, packs,
                   part.grad);
  }
  if (of.parts != nullptr)
    StoreWeightSums<N, kLanes>(sums, packs, half, of.parts + static_cast<int64_t>(blockIdx.x) * 2 * half);
}

bool Takes(const HeadAngles& angles, std::initializer_list<const HeadRows*> rows,
           std::initializer_list<const void*> addresses) {
  bool takes = false;
  WithType(angles.type, [&](auto of_type) {
    using T = decltype(of_type);
    takes = angles.half / kPack<T> <= 32 && Packs<T>(angles.half, addresses) &&
            Packs<float>(angles.half, {angles.cos, angles.sin});
    for (const HeadRows* of : rows) {
      takes = takes && Packs<T>(of->from_row, {of->from}) && Packs<T>(of->to_row, {of->to}) &&
              angles.tokens * of->heads < INT32_MAX;
    }
  });
  return takes;
}

}  // namespace

bool TakesNormedHeads(const NormedHeadsArgs& args) {
  return Takes(args.angles, {&args.q.rows, &args.k.rows}, {args.q.weight, args.k.weight});
}

bool TakesNormedHeads(const NormedHeadsBackwardArgs& args) {
  return Takes(args.angles, {&args.q.grad, &args.k.grad}, {args.q.weight, args.k.weight, args.q.x, args.k.x});
}

void NormedHeadsForward(const NormedHeadsArgs& args, Stream stream) {
  if (args.angles.tokens == 0) return;
  WithType(args.angles.type, [&](auto of_type) {
    using T = decltype(of_type);
    const auto run = [&](auto lanes) {
      const int wanted = (args.q.rows.heads + args.k.rows.heads) * lanes;
      const int threads = std::min(kForwardMostThreads, (wanted + 31) / 32 * 32);
      Forward<T, lanes><<<static_cast<unsigned>(args.angles.tokens), threads, 0, stream>>>(args);
    };
    WithLanes(args.angles.half / kPack<T>, run, [] {});
  });
  CheckLaunch("normed heads");
}

void NormedHeadsBackward(const NormedHeadsBackwardArgs& args, Stream stream) {
  const dim3 blocks(static_cast<unsigned>(kNormedHeadsBlocks), 2);
  WithType(args.angles.type, [&](auto of_type) {
    using T = decltype(of_type);
    const auto run = [&](auto lanes) { Backward<T, lanes><<<blocks, kBackwardThreads, 0, stream>>>(args); };
    WithLanes(args.angles.half / kPack<T>, run, [] {});
  });
  CheckLaunch("normed heads backward");
  for (const NormedHeadsGrad* of : {&args.q, &args.k}) {
    if (of->parts == nullptr) continue;
    AddUpParts({of->parts, kNormedHeadsBlocks, 2 * args.angles.half, of->weight_grad, args.weight_grad,
                args.accumulate},
               stream);
  }
}

}  // namespace fsdpd::kernels
