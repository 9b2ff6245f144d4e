// Grouped matrix product (one product per expert, with row counts that only the device knows) for any type,
// width and alignment, computed on the fp32 CUDA cores. The slow fallback of grouped_product.h.
#pragma once

#include <cstdint>

#include "fsdp/kernels/current_stream.h"
#include "fsdp/plan/spec/dtype.h"

namespace fsdpd::kernels {

// The rows of an expert start where those of the previous one end. Rows past the last end are neither read
// nor written.
struct GroupedProductArgs {
  void* x;              // [rows x inputs]
  void* y;              // [rows x outputs]
  void* matrix;         // [experts x outputs x inputs]
  const int32_t* ends;  // [experts]
  int64_t x_stride;     // Elements from one row to the next.
  int64_t y_stride;
  int64_t rows;  // Capacity of x and y.
  int64_t inputs;
  int64_t outputs;
  int experts;
  DType type;
};

// Each form computes one of x, y and matrix from the other two; sums are in fp32 and rounded once.
enum class GroupedForm {
  kForward,   // y = x matrix^T, over the rows of each expert.
  kBackward,  // x = y matrix.
  kWeights,   // matrix = y^T x; zero for an expert without rows.
};

void PlainGroupedProduct(GroupedForm form, const GroupedProductArgs& args, Stream stream);

}  // namespace fsdpd::kernels
