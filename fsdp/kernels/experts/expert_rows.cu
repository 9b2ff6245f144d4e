#include <algorithm>

#include "fsdp/kernels/experts/expert_rows.h"
#include "fsdp/kernels/pack.cuh"

namespace fsdpd::kernels {
namespace {

constexpr int kThreads = 256;
constexpr unsigned kWarp = 32;
constexpr unsigned kAllLanes = 0xffffffffu;

// The local index of the chosen expert, or -1 if its rows are not here.
__device__ int OwnExpert(const PlaceRowsArgs& args, int64_t choice) {
  const int64_t expert = args.chosen[choice] - args.first;
  return expert >= 0 && expert < args.experts ? static_cast<int>(expert) : -1;
}

// One warp per block: counts the choices of each expert among the block's choices.
__global__ void Count(PlaceRowsArgs args) {
  extern __shared__ int32_t of_expert[];
  for (int e = threadIdx.x; e < args.experts; e += kWarp) of_expert[e] = 0;
  __syncwarp();
  const int64_t begin = blockIdx.x * kChoicesOfBlock, end = min(begin + kChoicesOfBlock, args.choices);
  for (int64_t i = begin + threadIdx.x; i < end; i += kWarp) {
    const int expert = OwnExpert(args, i);
    if (expert >= 0) atomicAdd(&of_expert[expert], 1);
  }
  __syncwarp();
  for (int e = threadIdx.x; e < args.experts; e += kWarp)
    args.counts[static_cast<int64_t>(blockIdx.x) * args.experts + e] = of_expert[e];
}

// One block, one thread per expert: replaces each block's count with the number of choices in earlier blocks
// (an exclusive prefix sum per expert), then computes `ends` by a prefix sum over experts.
__global__ void Offsets(PlaceRowsArgs args, int64_t blocks) {
  __shared__ int32_t sums[kMostExperts];
  const int e = static_cast<int>(threadIdx.x);
  int32_t rows = 0;
  if (e < args.experts) {
    for (int64_t b = 0; b < blocks; ++b) {
      int32_t& count = args.counts[b * args.experts + e];
      const int32_t own = count;
      count = rows;
      rows += own;
    }
    if (args.step > 1) rows = max(args.step, (rows + args.step - 1) / args.step * args.step);
    if (args.each > 0) {
      if (rows > args.each) atomicAdd(args.overflow, static_cast<float>(rows - args.each));
      rows = static_cast<int32_t>(args.each);
    }
  }
  sums[e] = rows;
  __syncthreads();
  for (int step = 1; step < static_cast<int>(blockDim.x); step *= 2) {
    const int32_t before = e >= step ? sums[e - step] : 0;
    __syncthreads();
    sums[e] += before;
    __syncthreads();
  }
  const auto capacity = static_cast<int32_t>(args.rows);
  if (e < args.experts) args.ends[e] = min(sums[e], capacity);
  if (e == args.experts - 1 && sums[e] > capacity) *args.overflow += static_cast<float>(sums[e] - capacity);
}

// One warp per block, 32 choices at a time, in order: a choice's row follows those of lower lanes with the
// same expert. This keeps the order of choices, and therefore the bits of later sums, deterministic.
__global__ void Place(PlaceRowsArgs args) {
  extern __shared__ int32_t next[];
  for (int e = threadIdx.x; e < args.experts; e += kWarp) {
    next[e] =
        args.counts[static_cast<int64_t>(blockIdx.x) * args.experts + e] + (e > 0 ? args.ends[e - 1] : 0);
  }
  __syncwarp();
  const int64_t begin = blockIdx.x * kChoicesOfBlock, end = min(begin + kChoicesOfBlock, args.choices);
  for (int64_t first = begin; first < end; first += kWarp) {
    const int64_t i = first + threadIdx.x;
    const int expert = i < end ? OwnExpert(args, i) : -1;
    const unsigned same = __match_any_sync(kAllLanes, expert);
    const int before = __popc(same & ((1u << threadIdx.x) - 1));
    const int32_t row = expert >= 0 ? next[expert] + before : -1;
    const int64_t capacity = args.each > 0 ? (expert + 1) * args.each : args.rows;
    const bool has_room = row >= 0 && row < capacity;
    __syncwarp();
    if (i < end) args.of_choice[i] = has_room ? row : -1;
    if (has_room) args.order[row] = static_cast<int32_t>(i);
    if (expert >= 0 && before == 0) next[expert] += __popc(same);
    __syncwarp();
  }
}

// Threads along x cover columns, along y rows, so that narrow rows fill a block too.
struct Launch {
  dim3 blocks;
  dim3 threads;
};
Launch LaunchOf(int64_t rows, int64_t packs) {
  unsigned columns = 1;
  while (columns < kThreads && columns < packs) columns *= 2;
  const unsigned together = kThreads / columns;
  return {dim3(BlocksOf(rows, together), BlocksOf(packs, columns)), dim3(columns, together)};
}

__device__ int64_t Row() { return static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y; }
__device__ int64_t Column() { return static_cast<int64_t>(blockIdx.y) * blockDim.x + threadIdx.x; }

// Rows per thread, all loaded before the first store.
constexpr int kGathered = 4;

template <typename T, int N>
__global__ void Gather(GatherRowsArgs args, int64_t packs) {
  const int64_t first = Row() * kGathered, column = Column();
  if (first >= args.rows || column >= packs || (args.used != nullptr && first >= *args.used)) return;
  Pack<T, N> values[kGathered];
#pragma unroll
  for (int i = 0; i < kGathered; ++i) {
    const int32_t place = first + i < args.rows ? args.places[first + i] : -1;
    if (place >= 0) {
      values[i] = Load<T, N>(static_cast<const T*>(args.from), place / args.divisor * packs + column);
    } else {
      for (int k = 0; k < N; ++k) values[i].at[k] = Narrow<T>(0.0f);
    }
  }
#pragma unroll
  for (int i = 0; i < kGathered; ++i) {
    if (first + i < args.rows) Store(static_cast<T*>(args.to), (first + i) * packs + column, values[i]);
  }
}

template <typename T, typename S, int N, bool kTwo>
__global__ void Sum(SumRowsArgs args, int64_t packs) {
  const int64_t token = Row(), column = Column();
  if (token >= args.tokens || column >= packs) return;
  const int32_t* const of_token = args.of_choice + token * args.per_token;
  Pack<float, N> total = {};
#pragma unroll 4
  for (int j = 0; j < args.per_token; ++j) {
    if (of_token[j] < 0) continue;
    const int64_t place = of_token[j] * packs + column;
    const auto part = Load<T, N>(static_cast<const T*>(args.rows), place);
    for (int k = 0; k < N; ++k) total.at[k] += Wide(part.at[k]);
    if (!kTwo) continue;
    const auto second = Load<T, N>(static_cast<const T*>(args.second), place);
    for (int k = 0; k < N; ++k) total.at[k] += Wide(second.at[k]);
  }
  Pack<S, N> out;
  if (args.addend != nullptr) out = Load<S, N>(static_cast<const S*>(args.addend), token * packs + column);
  for (int k = 0; k < N; ++k)
    out.at[k] = Narrow<S>(args.addend != nullptr ? Wide(out.at[k]) + total.at[k] : total.at[k]);
  Store(static_cast<S*>(args.sum), token * packs + column, out);
}

// Four elements are at most 16 bytes for both types.
constexpr int kNumbers = 4;

template <typename T, typename S>
void LaunchSum(const SumRowsArgs& args, Stream stream) {
  const auto whole = [&args](const void* address, size_t bytes) {
    return reinterpret_cast<uintptr_t>(address) % (kNumbers * bytes) == 0;
  };
  const bool in_packs = args.width % kNumbers == 0 && whole(args.rows, sizeof(T)) &&
                        whole(args.second, sizeof(T)) && whole(args.addend, sizeof(S)) &&
                        whole(args.sum, sizeof(S));
  const int64_t packs = in_packs ? args.width / kNumbers : args.width;
  const bool two = args.second != nullptr;
  const auto kernel = in_packs ? (two ? Sum<T, S, kNumbers, true> : Sum<T, S, kNumbers, false>)
                               : (two ? Sum<T, S, 1, true> : Sum<T, S, 1, false>);
  const Launch launch = LaunchOf(args.tokens, packs);
  kernel<<<launch.blocks, launch.threads, 0, stream>>>(args, packs);
}

}  // namespace

void PlaceRows(const PlaceRowsArgs& args, Stream stream) {
  const int64_t blocks = PlaceRowsBlocks(args.choices);
  const size_t shared = args.experts * sizeof(int32_t);
  if (args.rows > 0) cudaMemsetAsync(args.order, 0xff, args.rows * sizeof(int32_t), stream);  // -1 each.
  if (blocks > 0) Count<<<static_cast<unsigned>(blocks), kWarp, shared, stream>>>(args);
  const auto threads = static_cast<unsigned>((args.experts + kWarp - 1) / kWarp * kWarp);
  Offsets<<<1, threads, 0, stream>>>(args, blocks);
  if (blocks > 0) Place<<<static_cast<unsigned>(blocks), kWarp, shared, stream>>>(args);
  CheckLaunch("places of rows");
}

void GatherRows(const GatherRowsArgs& args, Stream stream) {
  if (args.rows == 0 || args.width == 0) return;
  WithType(args.type, [&](auto of_type) {
    using T = decltype(of_type);
    const bool whole = Packs<T>(args.width, {args.from, args.to});
    const int64_t packs = whole ? args.width / kPack<T> : args.width;
    const auto kernel = whole ? Gather<T, kPack<T>> : Gather<T, 1>;
    const Launch launch = LaunchOf((args.rows + kGathered - 1) / kGathered, packs);
    kernel<<<launch.blocks, launch.threads, 0, stream>>>(args, packs);
  });
  CheckLaunch("gathered rows");
}

void SumRows(const SumRowsArgs& args, Stream stream) {
  if (args.tokens == 0 || args.width == 0) return;
  WithType(args.type, [&](auto of_row) {
    WithType(args.sum_type,
             [&](auto of_sum) { LaunchSum<decltype(of_row), decltype(of_sum)>(args, stream); });
  });
  CheckLaunch("sums of rows");
}

}  // namespace fsdpd::kernels
