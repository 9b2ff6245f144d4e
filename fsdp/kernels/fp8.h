// Quantization of bf16 matrices to FP8 (e4m3) with one scale per row, either row-wise or transposed. Backward
// products read transposed operands, because Hopper multiplies FP8 only if both operands are contiguous along
// the dimension that is summed over.
//
// scale = amax(row) / 448 (448 is the largest e4m3 number); a row with an amax below 2^-100 uses the scale of
// 2^-100. Elements are multiplied by 448 / amax in fp32 and rounded to nearest even. A row with an infinity
// or NaN gets a scale that turns every product with it into NaN.
//
// Outputs of RMSNorm and SwiGLU are quantized by their own kernels (rms_norm.h, fp8_swiglu.h).
//
// Weights are quantized once for all products that read them, with power-of-two scales: the smallest one with
// which no element of the row exceeds 448. Multiplying a gradient by a power of two is exact, so the backward
// product folds the scales of the weight's rows, which it sums over, into its other operand (`by_column`),
// and the quantized weight only needs to be transposed (Fp8Transpose).
//
// Rows of experts (expert_rows.h) are quantized by one launch; only the device knows how many rows each
// expert has (`ends`). Columns are then columns of one expert's rows, each with its own scale. Rows that are
// copies of tokens need not be materialized first: row r is row places[r] / divisor of `from`, and zero if
// places[r] is negative.
//
// Minimum memory traffic for n elements: 3 n bytes row-wise; 5 n transposed, since the column scales take a
// read of their own (an 8B layer's 8192 tokens of gate and up: 0.70 and 1.17 GB); 2 n if the input is already
// FP8. Keeping strips of columns in L2 between the two reads was slower: docs/bench.
#pragma once

#include <cstdint>

#include "fsdp/kernels/current_stream.h"
#include "fsdp/plan/spec/dtype.h"

namespace fsdpd::kernels {

// FP8 statistics, accumulated by kernels that get a pointer to them. Scales are fp32 bit patterns, which sort
// like the positive numbers they encode, and cover all rows. The element counts (nonzero elements, and those
// that are flushed to zero) sample one row in kFp8Watched.
struct Fp8Statistics {
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
  float* scales;  // [rows]: multiply the FP8 elements by it to dequantize.
  // [width] powers of two that multiply the elements before quantization; null: none.
  const float* by_column = nullptr;
  // [experts]: by_column is [experts x width]; rows past the last are not written.
  const int32_t* ends = nullptr;
  int experts = 0;
  const int32_t* places = nullptr;  // [rows]; only with ends and by_column.
  int divisor = 1;
  Fp8Statistics* seen = nullptr;
};
void Fp8Rows(const Fp8RowsArgs& args, Stream stream);

// Quantizes with power-of-two scales.
struct Fp8WeightsArgs {
  const void* from;  // [rows x width], contiguous, rounded to bf16 first.
  DType type;        // Type of `from`: bf16 or fp32.
  int64_t rows;
  int64_t width;
  void* to;       // [rows x width]
  float* scales;  // [rows]
  Fp8Statistics* seen = nullptr;
};
void Fp8Weights(const Fp8WeightsArgs& args, Stream stream);

struct Fp8TransposeArgs {
  const void*
      from;  // [matrices x rows x width] FP8, contiguous; sizes, strides and addresses are multiples of 8.
  int64_t rows;
  int64_t width;
  void* to;     // [matrices x width x rows], rows `stride` elements apart.
  float* ones;  // [matrices x width]: set to 1; the scales of `from` go into the other operand.
  int64_t stride;
  int64_t matrices = 1;
};
void Fp8Transpose(const Fp8TransposeArgs& args, Stream stream);

struct Fp8ColumnsArgs {
  const void* from;  // Like Fp8RowsArgs::from.
  int64_t rows;
  int64_t width;
  int64_t stride;
  void* to;        // [width x padded]: zero from column `rows` on, or NaN if the matrix column contains one.
  int64_t padded;  // A multiple of 4.
  float* scales;   // [width]
  uint32_t* largest;  // [width]: scratch for column maxima.
  // [experts], multiples of kFp8Step: scales and largest are [experts x width]. Nothing is written past the
  // last.
  const int32_t* ends = nullptr;
  int experts = 1;
  const int32_t* places = nullptr;  // [rows]; only with ends.
  int divisor = 1;
  bool found = false;  // `largest` has the column maxima already; not with ends.
};
void Fp8Columns(const Fp8ColumnsArgs& args, Stream stream);

}  // namespace fsdpd::kernels
