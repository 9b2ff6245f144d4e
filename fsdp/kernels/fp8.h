// A matrix in FP8 (e4m3) with a scale a row, from bf16: as it is, or turned, which is what the next product's
// backward reads, since Hopper multiplies FP8 only along rows of both operands.
//
// A row's scale is its largest magnitude over 448, FP8's largest number, or that of 2^-100 in a row of less;
// a number is multiplied with 448 over that magnitude in fp32 and rounded to the nearest, ties to even. A row
// with an infinity or a NaN gets such a scale, so that all that is multiplied with it is NaN.
//
// What norms and SwiGLU make is rounded by their own kernels (rms_norm.h, fp8_swiglu.h).
//
// Weights are rounded once for all products that read them. Their scale is a power of two, the least with
// which no number of the row is above 448: a gradient that is multiplied with it keeps its bits, so that the
// scales of the rows that the input's gradient adds up go into that product's other operand (`by_column`),
// and what was rounded need only be turned.
//
// Rows of experts (expert_rows.h) are rounded all at once, of whom only the device knows how many rows each
// has: `ends`. Columns are then of an expert's rows, and each has scales of its own. What is copied into such
// rows from tokens need not be: row r is from's row places[r] / divisor, and zero where that is below 0.
//
// Bytes that must move for n numbers: 3 n, and turned 5 n, as the scales of columns take a reading of their
// own (an 8B layer's 8192 tokens of gate and up: 0.70 and 1.17 GB); of what is in FP8 already, 2 n. (By
// strips of columns that a card's cache holds between the two readings it was slower: docs/bench.)
#pragma once

#include <cstdint>

#include "fsdp/kernels/stream.h"
#include "fsdp/plan/spec/dtype.h"

namespace fsdpd::kernels {

// What a kernel that is given a place for it adds there. Scales, of all rows, as bits of fp32, which are in
// the order of positive numbers; numbers, and of them those that become zero, of one row in kFp8Watched.
struct Fp8Seen {
  unsigned long long numbers;
  unsigned long long flushed;
  unsigned long long least_scale;
  unsigned long long largest_scale;
};
constexpr int kFp8Watched = 64;

struct Fp8RowsArgs {
  const void* from;  // [rows x width] bf16; rows are `stride` numbers apart.
  int64_t rows;
  int64_t width;
  int64_t stride;
  void* to;       // [rows x width]
  float* scales;  // [rows]: what its numbers are multiplied with.
  // [width] powers of two that the numbers are multiplied with before; null: nothing.
  const float* by_column = nullptr;
  const int32_t* ends = nullptr;  // [experts]: by_column is [experts x width]. Rows beyond the last are left.
  int experts = 0;
  const int32_t* places = nullptr;  // [rows]; with ends and by_column alone.
  int divisor = 1;
  Fp8Seen* seen = nullptr;
};
void Fp8Rows(const Fp8RowsArgs& args, Stream stream);

// With scales that are powers of two.
struct Fp8WeightsArgs {
  const void* from;  // [rows x width], contiguous, rounded to bf16 before anything else.
  DType type;        // Of those: bf16 or fp32.
  int64_t rows;
  int64_t width;
  void* to;       // [rows x width]
  float* scales;  // [rows]
  Fp8Seen* seen = nullptr;
};
void Fp8Weights(const Fp8WeightsArgs& args, Stream stream);

struct Fp8TurnArgs {
  const void* from;  // [matrices x rows x width] FP8, contiguous; 8 divides sizes, strides and addresses.
  int64_t rows;
  int64_t width;
  void* to;     // [matrices x width x rows], rows `stride` numbers apart.
  float* ones;  // [matrices x width]: scales, for those of `from` belong to no row here.
  int64_t stride;
  int64_t matrices = 1;
};
void Fp8Turn(const Fp8TurnArgs& args, Stream stream);

struct Fp8ColumnsArgs {
  const void* from;  // As above.
  int64_t rows;
  int64_t width;
  int64_t stride;
  void* to;           // [width x padded]: zero from `rows` on, or NaN in a column that has one.
  int64_t padded;     // A multiple of 4.
  float* scales;      // [width]
  uint32_t* largest;  // [width]: room for magnitudes meanwhile.
  // [experts], multiples of kFp8Step: scales and room are [experts x width]. Nothing is written beyond.
  const int32_t* ends = nullptr;
  int experts = 1;
  const int32_t* places = nullptr;  // [rows]; with ends alone.
  int divisor = 1;
  bool found = false;  // Whether who made x has left magnitudes in `largest`; without ends alone.
};
void Fp8Columns(const Fp8ColumnsArgs& args, Stream stream);

}  // namespace fsdpd::kernels
