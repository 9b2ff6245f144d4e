// Products of many experts' matrices, each with its own rows, of which only the device knows how many
// there are: by a kernel that takes any type, width and address, in fp32's own units. The slow way of
// grouped_product.h.
#pragma once

#include <cstdint>

#include "fsdp/kernels/stream.h"
#include "fsdp/plan/spec/dtype.h"

namespace fsdpd::kernels {

// An expert's rows begin where those before end. There may be room beyond the last: it is neither read nor
// written.
struct GroupedProductArgs {
  void* x;              // [rows x inputs]
  void* y;              // [rows x outputs]
  void* matrix;         // [experts x outputs x inputs]
  const int32_t* ends;  // [experts]
  int64_t x_stride;     // From row to row, in numbers.
  int64_t y_stride;
  int64_t rows;  // That x and y have room for.
  int64_t inputs;
  int64_t outputs;
  int experts;
  DType type;
};

// Each makes one of the three of the other two; sums are in fp32 and rounded once.
enum class GroupedForm {
  kForward,   // y = x matrix^T, of each expert's rows.
  kBackward,  // x = y matrix.
  kWeights,   // matrix = y^T x; zero where an expert has no rows.
};

void PlainGroupedProduct(GroupedForm form, const GroupedProductArgs& args, Stream stream);

}  // namespace fsdpd::kernels
