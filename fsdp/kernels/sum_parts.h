// The local half of a reduce-scatter in a 16-bit wire type: sums the parts that ranks sent, in rank order and
// in fp32, plus an addend. The same pass computes the squares for the gradient norm.
//
// Minimum memory traffic for `ranks` parts of n elements of c bytes, and sums of s bytes: ranks n c + s n,
// and s n more for an addend.
#pragma once

#include <cstdint>

#include "fsdp/kernels/current_stream.h"
#include "fsdp/plan/spec/dtype.h"

namespace fsdpd::kernels {

// Number of sums whose squares make one partial sum.
constexpr int64_t kSquaresPerPart = 4096;

constexpr int64_t SquaresOf(int64_t count) { return (count + kSquaresPerPart - 1) / kSquaresPerPart; }

struct SumPartsArgs {
  const void* parts;   // [ranks x count], contiguous.
  const void* own;     // [count]: replaces part number `rank`, which is then not read. Null: not used.
  const void* addend;  // [count] of `sum_type`; may alias `sum`. Null: not used.
  void* sum;           // [count], each rounded once.
  float* squares;      // [SquaresOf(count)]: sums of squares of the final `sum`. Null: not needed.
  int64_t count;
  int ranks;
  int rank;
  DType type;  // Element type of parts.
  DType sum_type;
};

void SumParts(const SumPartsArgs& args, Stream stream);

}  // namespace fsdpd::kernels
