// The way from tokens to rows of experts and back (fsdp/model/native/native_experts.h): where each
// choice's row lies, rows gathered from elsewhere, and a token's rows added up.
//
// An expert's rows follow each other, in the choices' order, and begin at a multiple of `step`; what
// fills them up to the next expert's is of no choice. How many rows an expert has is known to the device
// alone: buffers have room for the most there can be, or for less, and then what is lacking is counted.
// Nothing here depends on what was chosen but what is written.
//
// Bytes that must move: 2 rows x width x c to gather, per_token + 1 of each token's to add up (of two parts 2
// per_token + 1).
#pragma once

#include <cstdint>

#include "fsdp/kernels/stream.h"
#include "fsdp/plan/spec/dtype.h"

namespace fsdpd::kernels {

constexpr int64_t kMostExperts = 1024;  // As many as a block has threads.
constexpr int64_t kChoicesOfBlock = 1024;

// Of PlaceRows: so many numbers for each expert.
constexpr int64_t PlaceRowsBlocks(int64_t choices) {
  return (choices + kChoicesOfBlock - 1) / kChoicesOfBlock;
}

struct PlaceRowsArgs {
  const int64_t* chosen;  // [choices]: an expert's number.
  int32_t* order;         // [rows]: of which choice each row is; -1: of none.
  int32_t* of_choice;     // [choices]: the row of each; -1: it has none here.
  int32_t* ends;          // [experts]: where each one's rows end, with what fills them up.
  int32_t* counts;        // [PlaceRowsBlocks(choices) x experts]: scratch.
  float* lacking;         // Rows that there is no room for are added to it. Null: there is.
  int64_t choices;
  int64_t rows;  // With room for all: experts x step more than choices, where the step is above 1.
  int first;     // Choices of `experts` from this one on have rows, others none.
  int experts;   // At most kMostExperts.
  int step;      // 1: nothing is filled up. Above it an expert has at least so many rows.
  int64_t each;  // Where not 0, each has room for so many by itself, and the next one's begin behind it.
};

void PlaceRows(const PlaceRowsArgs& args, Stream stream);

struct GatherRowsArgs {
  const void* from;       // [any x width]
  const int32_t* places;  // [rows]: each row is from[place / divisor]; of a place below 0 it is zero.
  void* to;               // [rows x width]
  const int32_t* used;    // Rows from this number on are not written. Null: all are.
  int64_t rows;
  int64_t width;
  int divisor;
  DType type;
};

void GatherRows(const GatherRowsArgs& args, Stream stream);

struct SumRowsArgs {
  const void* rows;          // [any x width]
  const void* second;        // Likewise, added to `rows`; null: nothing is.
  const int32_t* of_choice;  // [tokens x per_token]; below 0: nothing is added.
  const void* addend;        // [tokens x width] of `sum_type`; may be `sum`. Null: none.
  void* sum;                 // [tokens x width]: in the choices' order, in fp32, rounded once.
  int64_t tokens;
  int64_t width;
  int per_token;
  DType type;  // Of rows.
  DType sum_type;
};

void SumRows(const SumRowsArgs& args, Stream stream);

}  // namespace fsdpd::kernels
