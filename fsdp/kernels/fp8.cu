#include <stdexcept>

#include "fsdp/kernels/fp8.cuh"
#include "fsdp/kernels/fp8.h"

namespace fsdpd::kernels {
namespace {

using Number = __nv_bfloat16;

template <int N, typename T>
__device__ auto LoadPack(const T* from, int64_t pack) {
  if constexpr (N == 1) {
    return One{{Narrow<Number>(Wide(from[pack]))}};
  } else {
    return LoadPairs(from, pack);
  }
}

// The expert that a row belongs to, computed by a whole warp; `experts` for rows past the last end.
__device__ int ExpertOf(const int32_t* ends, int experts, int64_t row) {
  int before = 0;
  for (int e = static_cast<int>(threadIdx.x) % 32; e < experts; e += 32) before += ends[e] <= row ? 1 : 0;
  return __reduce_add_sync(0xffffffffu, before);
}

// The row of `from` to read; -1: a zero row.
template <typename Args>
__device__ int PlaceOf(const Args& args, int64_t row) {
  if (args.places == nullptr) return static_cast<int>(row);
  const int place = args.places[row];
  return place < 0 ? -1 : place / args.divisor;
}

// One block per row.
template <int N, bool kByColumn>
__global__ void Rows(Fp8RowsArgs args) {
  const int64_t row = blockIdx.x;
  int64_t place = row;
  if (args.ends != nullptr) {
    const int expert = ExpertOf(args.ends, args.experts, row);
    if (expert == args.experts) return;
    if constexpr (kByColumn) {
      args.by_column += expert * args.width;
      place = PlaceOf(args, row);
    }
  }
  const Number* const from = static_cast<const Number*>(args.from) + place * args.stride;
  const auto source = [&](int64_t i) {
    if constexpr (kByColumn) {
      if (place < 0) return decltype(LoadPack<N>(from, i)){};
      return ProductOf(LoadPack<N>(from, i), LoadPack<N>(args.by_column, i));
    } else {
      return LoadPack<N>(from, i);
    }
  };
  RoundRow(source, args.width / N, static_cast<unsigned char*>(args.to) + row * args.width, args.scales + row,
           args.seen);
}

template <int N, typename T>
__global__ void Weights(Fp8WeightsArgs args) {
  const int64_t row = blockIdx.x;
  const T* const from = static_cast<const T*>(args.from) + row * args.width;
  RoundRow<PowerScale>([&](int64_t i) { return LoadPack<N>(from, i); }, args.width / N,
                       static_cast<unsigned char*>(args.to) + row * args.width, args.scales + row, args.seen);
}

// ---- Column-wise quantization, pass 1: column maxima. A block covers kPacks packs of columns and
// kRowsTogether rows, divided among its warps. The order of atomics does not matter, since a maximum is
// order-independent.

constexpr int kPacks = 32;
constexpr int kWarps = 8;
constexpr int64_t kRowsTogether = 256;
constexpr int kUnderWay = 4;  // Rows that a thread loads before it uses the first.

// A warp takes consecutive rows in steps of kFp8Step, each of which belongs to a single expert, so that it
// flushes its maxima only when the expert changes.
template <int N, bool kPlaced>
__global__ void ExpertColumnMax(Fp8ColumnsArgs args) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t pack = blockIdx.x * static_cast<int64_t>(kPacks) + lane;
  const int64_t first = blockIdx.y * kRowsTogether + warp * (kRowsTogether / kWarps);
  static_assert(kRowsTogether / kWarps == 32);
  const int own_place = kPlaced && first + lane < args.rows ? PlaceOf(args, first + lane) : 0;
  const Number* const from = static_cast<const Number*>(args.from);
  const bool has = pack < args.width / N;
  int expert = ExpertOf(args.ends, args.experts, first);
  unsigned largest[N] = {};
  const auto add = [&] {
    for (int k = 0; k < N; ++k) {
      if (largest[k] > 0) atomicMax(args.largest + expert * args.width + pack * N + k, largest[k]);
      largest[k] = 0;
    }
  };
  for (int64_t begin = first; begin < first + kRowsTogether / kWarps && expert < args.experts;
       begin += kFp8Step) {
    if (args.ends[expert] <= begin) {
      if (has) add();
      expert = ExpertOf(args.ends, args.experts, begin);
      if (expert == args.experts) return;
    }
    for (int together = 0; together < kFp8Step; together += kUnderWay) {
      int64_t at[kUnderWay];
      for (int r = 0; r < kUnderWay; ++r) {
        at[r] = begin + together + r;
        if constexpr (kPlaced) at[r] = __shfl_sync(0xffffffffu, own_place, static_cast<int>(at[r] - first));
      }
      if (!has) continue;
      Pack<Number, N> x[kUnderWay];  // Places below 0 load row 0 instead, to avoid a branch.
      for (int r = 0; r < kUnderWay; ++r)
        x[r] = Load<Number, N>(from + max(at[r], int64_t{0}) * args.stride, pack);
      for (int r = 0; r < kUnderWay; ++r) {
        for (int k = 0; k < N; ++k) largest[k] = max(largest[k], at[r] < 0 ? 0 : Magnitude(x[r].at[k]));
      }
    }
  }
  if (has && expert < args.experts) add();
}

template <int N>
__global__ void ColumnMax(Fp8ColumnsArgs args) {
  __shared__ unsigned of_warp[kWarps][kPacks * N];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t pack = blockIdx.x * static_cast<int64_t>(kPacks) + lane;
  const int64_t end = min(args.rows, (blockIdx.y + 1) * kRowsTogether);
  unsigned largest[N] = {};
  if (pack < args.width / N) {
#pragma unroll 4
    for (int64_t row = blockIdx.y * kRowsTogether + warp; row < end; row += kWarps) {
      const auto x = Load<Number, N>(static_cast<const Number*>(args.from) + row * args.stride, pack);
      for (int k = 0; k < N; ++k) largest[k] = max(largest[k], Magnitude(x.at[k]));
    }
  }
  for (int k = 0; k < N; ++k) of_warp[warp][lane * N + k] = largest[k];
  __syncthreads();
  const int64_t first = blockIdx.x * static_cast<int64_t>(kPacks * N);
  for (int c = threadIdx.x; c < kPacks * N && first + c < args.width; c += blockDim.x) {
    unsigned of_column = 0;
    for (int w = 0; w < kWarps; ++w) of_column = max(of_column, of_warp[w][c]);
    atomicMax(args.largest + first + c, of_column);
  }
}

// ---- Pass 2: transposes tiles of kTileRows x kTileColumns in shared memory, with four rows of a column
// packed into a word.
constexpr int kTileRows = 128;
constexpr int kTileColumns = 64;
constexpr int kTileWords = kTileRows / 4;
constexpr int kTransposeWarps = 8;

// Groups of kFp8Step rows in a tile; each group has the scales of one expert.
constexpr int kTileSteps = kTileRows / kFp8Step;
static_assert(kTileSteps == kTransposeWarps);

template <int N, bool kExperts, bool kPlaced>
__global__ void __launch_bounds__(kTransposeWarps * 32) Transpose(Fp8ColumnsArgs args) {
  __shared__ unsigned words[kTileColumns][kTileWords + 1];
  __shared__ float factors[kExperts ? kTileSteps : 1][kTileColumns];
  __shared__ int places[kPlaced ? kTileRows : 1];
  const int64_t first_row = blockIdx.x * static_cast<int64_t>(kTileRows);
  const int64_t first_column = blockIdx.y * static_cast<int64_t>(kTileColumns);
  const int64_t room = args.padded;
  if constexpr (kExperts) {
    args.rows = args.ends[args.experts - 1];
    args.padded = args.rows;
    if (first_row >= args.rows) return;
    if constexpr (kPlaced) {
      for (int r = threadIdx.x; r < kTileRows; r += blockDim.x)
        places[r] = first_row + r < args.rows ? PlaceOf(args, first_row + r) : -1;
    }
    const int step = threadIdx.x / 32;
    const int64_t row = first_row + step * kFp8Step;
    const int expert = ExpertOf(args.ends, args.experts, row);
    for (int c = threadIdx.x % 32; c < kTileColumns; c += 32) {
      if (expert == args.experts || first_column + c >= args.width) break;
      const int64_t at = expert * args.width + first_column + c;
      factors[step][c] = FactorOf(args.largest[at]);
      if (row == (expert > 0 ? args.ends[expert - 1] : 0)) args.scales[at] = ScaleOf(args.largest[at]);
    }
  } else {
    for (int c = threadIdx.x; c < kTileColumns; c += blockDim.x) {
      if (first_column + c >= args.width) break;
      const unsigned largest = args.largest[first_column + c];
      factors[0][c] = FactorOf(largest);
      if (blockIdx.x == 0) args.scales[first_column + c] = ScaleOf(largest);
    }
  }
  __syncthreads();
  constexpr int kTilePacks = kTileColumns / N;
  for (int item = threadIdx.x; item < kTilePacks * kTileWords; item += blockDim.x) {
    const int pack = item % kTilePacks, word = item / kTilePacks;
    if (first_column + pack * N >= args.width) continue;
    decltype(LoadPack<N>(static_cast<const Number*>(nullptr), 0)) of_row[4] = {};
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const int64_t row = first_row + word * 4 + r;
      if (row >= args.rows) break;
      const int64_t at = kPlaced ? places[word * 4 + r] : row;
      of_row[r] = LoadPack<N>(static_cast<const Number*>(args.from) + max(at, int64_t{0}) * args.stride,
                              first_column / N + pack);
      if (kPlaced && at < 0) of_row[r] = {};
    }
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const float factor = factors[kExperts ? word * 4 / kFp8Step : 0][pack * N + k];
      words[pack * N + k][word] = RoundedWord(At(of_row[0], k) * factor, At(of_row[1], k) * factor,
                                              At(of_row[2], k) * factor, At(of_row[3], k) * factor);
    }
  }
  __syncthreads();
  unsigned* const to = static_cast<unsigned*>(args.to);
  const int64_t row_words = room / 4, first_word = first_row / 4;
  for (int item = threadIdx.x; item < kTileColumns * kTileWords; item += blockDim.x) {
    const int column = item / kTileWords, word = item % kTileWords;
    if (first_column + column >= args.width || first_word + word >= args.padded / 4) continue;
    to[(first_column + column) * row_words + first_word + word] = words[column][word];
  }
}

// ---- Transpose of a matrix that is already FP8. Each thread reads tiles of four rows x eight columns and
// writes eight rows of a column. Words are swizzled in shared memory: neither a row nor a column of words has
// bank conflicts, and pairs of neighbors stay adjacent for 8-byte accesses.

constexpr int kSide = 128;
constexpr int kSideWords = kSide / 4;
constexpr int kSideTwos = kSideWords / 2;
constexpr int kTransposeThreads = 256;
constexpr int kTransposeBlocks = 6;  // Per multiprocessor.

// 8 FP8 elements.
struct alignas(8) TwoWords {
  unsigned at[2];
};

struct Words {
  unsigned at[4];
};

// 4x4 byte transpose: byte k of each row becomes word k.
__device__ Words TurnedWords(const Words& rows) {
  const unsigned low = __byte_perm(rows.at[0], rows.at[1], 0x5140),
                 low_next = __byte_perm(rows.at[2], rows.at[3], 0x5140),
                 high = __byte_perm(rows.at[0], rows.at[1], 0x7362),
                 high_next = __byte_perm(rows.at[2], rows.at[3], 0x7362);
  return {{__byte_perm(low, low_next, 0x5410), __byte_perm(low, low_next, 0x7632),
           __byte_perm(high, high_next, 0x5410), __byte_perm(high, high_next, 0x7632)}};
}

__device__ inline int PlaceOfWord(int word, int column) { return word ^ (column / 8 * 2); }

__global__ void __launch_bounds__(kTransposeThreads, kTransposeBlocks) TransposeBytes(Fp8TransposeArgs args) {
  __shared__ alignas(8) unsigned words[kSide][kSideWords];
  const int64_t first_row = blockIdx.x * static_cast<int64_t>(kSide);
  const int64_t first_column = blockIdx.y * static_cast<int64_t>(kSide);
  const int64_t matrix = blockIdx.z, row_twos = args.width / 8, to_twos = args.stride / 8;
  const auto* const from = static_cast<const TwoWords*>(args.from) + matrix * args.rows * row_twos;
  auto* const to = static_cast<TwoWords*>(args.to) + matrix * args.width * to_twos;
  constexpr int kReads = kSideTwos * kSideWords / kTransposeThreads;
  TwoWords read[kReads][4];
#pragma unroll
  for (int i = 0; i < kReads; ++i) {
    const int item = threadIdx.x + i * kTransposeThreads, two = item % kSideTwos, word = item / kSideTwos;
    if (first_column + two * 8 >= args.width || first_row + word * 4 >= args.rows) continue;
#pragma unroll
    for (int r = 0; r < 4; ++r)
      read[i][r] = from[(first_row + word * 4 + r) * row_twos + first_column / 8 + two];
  }
#pragma unroll
  for (int i = 0; i < kReads; ++i) {
    const int item = threadIdx.x + i * kTransposeThreads, two = item % kSideTwos, word = item / kSideTwos;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const Words transposed =
          TurnedWords({{read[i][0].at[half], read[i][1].at[half], read[i][2].at[half], read[i][3].at[half]}});
      const int column = two * 8 + half * 4;
#pragma unroll
      for (int k = 0; k < 4; ++k) words[column + k][PlaceOfWord(word, column)] = transposed.at[k];
    }
  }
  __syncthreads();
#pragma unroll
  for (int item = threadIdx.x; item < kSide * kSideTwos; item += kTransposeThreads) {
    const int two = item % kSideTwos, column = item / kSideTwos;
    if (first_column + column >= args.width || first_row + two * 8 >= args.rows) continue;
    to[(first_column + column) * to_twos + first_row / 8 + two] =
        *reinterpret_cast<const TwoWords*>(&words[column][PlaceOfWord(two * 2, column)]);
  }
  if (blockIdx.x > 0) return;
  for (int c = threadIdx.x; c < kSide && first_column + c < args.width; c += kTransposeThreads)
    args.ones[matrix * args.width + first_column + c] = 1;
}

// Whether rows can be read in whole packs.
bool WholePacks(const void* from, int64_t width, int64_t stride) {
  return Packs<Number>(width, {from}) && stride % kPack<Number> == 0;
}

template <int N>
void LaunchColumns(const Fp8ColumnsArgs& args, Stream stream) {
  const dim3 blocks(BlocksOf(args.width / N, kPacks), BlocksOf(args.rows, kRowsTogether));
  const dim3 tiles(BlocksOf(args.padded, kTileRows), BlocksOf(args.width, kTileColumns));
  const bool experts = args.ends != nullptr, placed = args.places != nullptr;
  const auto of_experts = placed ? ExpertColumnMax<N, true> : ExpertColumnMax<N, false>;
  const auto turn_experts = placed ? Transpose<N, true, true> : Transpose<N, true, false>;
  const auto largest = experts ? of_experts : ColumnMax<N>;
  const auto transpose = experts ? turn_experts : Transpose<N, false, false>;
  if (!args.found) largest<<<blocks, kWarps * 32, 0, stream>>>(args);
  transpose<<<tiles, kTransposeWarps * 32, 0, stream>>>(args);
}

}  // namespace

void Fp8Rows(const Fp8RowsArgs& args, Stream stream) {
  if (args.rows == 0 || args.width == 0) return;
  constexpr int kWhole = kPack<Number>;
  const bool whole = WholePacks(args.from, args.width, args.stride) &&
                     Packs<float>(args.width, {args.by_column}) &&
                     reinterpret_cast<uintptr_t>(args.to) % kWhole == 0;
  const int64_t packs = whole ? args.width / kWhole : args.width;
  const auto plain = whole ? Rows<kWhole, false> : Rows<1, false>;
  const auto by_column = whole ? Rows<kWhole, true> : Rows<1, true>;
  const auto kernel = args.by_column == nullptr ? plain : by_column;
  kernel<<<static_cast<unsigned>(args.rows), RowThreads(packs), 0, stream>>>(args);
  CheckLaunch("fp8 rows");
}

void Fp8Weights(const Fp8WeightsArgs& args, Stream stream) {
  if (args.rows == 0 || args.width == 0) return;
  constexpr int kWhole = kPack<Number>;
  const bool whole =
      Packs<Number>(args.width, {args.from}) && reinterpret_cast<uintptr_t>(args.to) % kWhole == 0;
  const int64_t packs = whole ? args.width / kWhole : args.width;
  const auto of_bf16 = whole ? Weights<kWhole, Number> : Weights<1, Number>;
  const auto of_fp32 = whole ? Weights<kWhole, float> : Weights<1, float>;
  const auto kernel = args.type == DType::kFp32 ? of_fp32 : of_bf16;
  kernel<<<static_cast<unsigned>(args.rows), RowThreads(packs), 0, stream>>>(args);
  CheckLaunch("fp8 weights");
}

void Fp8Transpose(const Fp8TransposeArgs& args, Stream stream) {
  if (args.rows == 0 || args.width == 0 || args.matrices == 0) return;
  const dim3 tiles(BlocksOf(args.rows, kSide), BlocksOf(args.width, kSide),
                   static_cast<unsigned>(args.matrices));
  TransposeBytes<<<tiles, kTransposeThreads, 0, stream>>>(args);
  CheckLaunch("fp8 turn");
}

void Fp8Columns(const Fp8ColumnsArgs& args, Stream stream) {
  if (args.width == 0 || args.padded == 0) return;
  if (!args.found) {
    const cudaError_t error =
        cudaMemsetAsync(args.largest, 0, args.experts * args.width * sizeof(uint32_t), stream);
    if (error != cudaSuccess) throw std::runtime_error(cudaGetErrorString(error));
  }
  const bool whole = WholePacks(args.from, args.width, args.stride);
  whole ? LaunchColumns<kPack<Number>>(args, stream) : LaunchColumns<1>(args, stream);
  CheckLaunch("fp8 columns");
}

}  // namespace fsdpd::kernels
