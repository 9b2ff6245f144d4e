// The local half of a reduce-scatter with a narrow wire: adds up the parts that ranks sent, in rank order and
// in fp32, and an addend to them. The squares for the gradient's norm are taken in the same pass.
//
// Bytes that must move for `ranks` parts of n numbers of c bytes, and sums of s bytes: ranks n c + s n, and
// s n more for an addend.
#pragma once

#include <cstdint>

#include "fsdp/kernels/stream.h"
#include "fsdp/plan/spec/dtype.h"

namespace fsdpd::kernels {

// Sums whose squares are added up together.
constexpr int64_t kSquaredTogether = 4096;

constexpr int64_t SquaresOf(int64_t count) { return (count + kSquaredTogether - 1) / kSquaredTogether; }

struct SumPartsArgs {
  const void* parts;   // [ranks x count], one after the other.
  const void* own;     // [count]: in place of the `rank`-th of them, which is not read. Null: it is.
  const void* addend;  // [count] of `sum_type`; may be `sum`. Null: none.
  void* sum;           // [count], each rounded once.
  float* squares;      // [SquaresOf(count)]: of what `sum` is in the end. Null when nobody asks.
  int64_t count;
  int ranks;
  int rank;
  DType type;  // Of parts.
  DType sum_type;
};

void SumParts(const SumPartsArgs& args, Stream stream);

}  // namespace fsdpd::kernels
