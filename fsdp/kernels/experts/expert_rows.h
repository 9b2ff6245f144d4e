// Permutation between tokens and rows of experts, for mixture-of-experts layers
// (fsdp/model/native/native_experts.h): computes the row of each routing choice, gathers rows, and sums the
// rows of each token. A "choice" is one (token, k-th expert) pair of top-k routing.
//
// The rows of an expert are contiguous, in the order of the choices, and start at a multiple of `step`;
// padding rows between experts belong to no choice. Only the device knows how many rows each expert has.
// Buffers hold either the maximum number of rows or fewer; rows that exceed the capacity are counted, not
// written. Kernel launches do not depend on the routing, only the data they write does, so they can be
// captured in a CUDA graph.
//
// Minimum memory traffic for elements of c bytes: 2 rows x width x c to gather; per_token + 1 rows for each
// token to sum (2 per_token + 1 with `second`).
#pragma once

#include <cstdint>

#include "fsdp/kernels/current_stream.h"
#include "fsdp/plan/spec/dtype.h"

namespace fsdpd::kernels {

constexpr int64_t kMostExperts = 1024;  // One thread of a block per expert.
constexpr int64_t kChoicesOfBlock = 1024;

// Number of blocks of PlaceRows(); it needs one scratch counter per block and expert.
constexpr int64_t PlaceRowsBlocks(int64_t choices) {
  return (choices + kChoicesOfBlock - 1) / kChoicesOfBlock;
}

struct PlaceRowsArgs {
  const int64_t* chosen;  // [choices]: the index of the expert.
  int32_t* order;         // [rows]: the choice that each row belongs to; -1: padding.
  int32_t* of_choice;     // [choices]: the row of each choice; -1: no row here.
  int32_t* ends;          // [experts]: where the rows of each expert end, padding included.
  int32_t* counts;        // [PlaceRowsBlocks(choices) x experts]: scratch.
  float* overflow;        // Incremented by the number of rows over capacity. Null: capacity suffices.
  int64_t choices;
  int64_t rows;  // Full capacity is `choices`, plus experts x step if step is above 1.
  int first;     // Only experts [first, first + experts) have rows here.
  int experts;   // At most kMostExperts.
  int step;      // 1: no padding. Above 1, each expert has at least `step` rows.
  int64_t each;  // If not 0: the capacity of each expert, at a fixed offset e x each.
};

void PlaceRows(const PlaceRowsArgs& args, Stream stream);

struct GatherRowsArgs {
  const void* from;       // [any x width]
  const int32_t* places;  // [rows]: row r is from[places[r] / divisor]; zero if places[r] < 0.
  void* to;               // [rows x width]
  const int32_t* used;    // *used: rows from this one on are not written. Null: all are written.
  int64_t rows;
  int64_t width;
  int divisor;
  DType type;
};

void GatherRows(const GatherRowsArgs& args, Stream stream);

struct SumRowsArgs {
  const void* rows;          // [any x width]
  const void* second;        // Like `rows`, added to it. Null: not used.
  const int32_t* of_choice;  // [tokens x per_token]; negative: no contribution.
  const void* addend;        // [tokens x width] of `sum_type`; may alias `sum`. Null: not used.
  void* sum;                 // [tokens x width]: summed in the order of choices, in fp32, rounded once.
  int64_t tokens;
  int64_t width;
  int per_token;
  DType type;  // Element type of rows and second.
  DType sum_type;
};

void SumRows(const SumRowsArgs& args, Stream stream);

}  // namespace fsdpd::kernels
