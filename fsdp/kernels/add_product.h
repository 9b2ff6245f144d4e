// sum = residual + x weight^T, added up in fp32 and rounded once. cuBLASLt reads the residual where it lies;
// LibTorch's addmm copies it first, which is twice its bytes (an 8B layer at 8192 tokens: 134 MB, twice).
//
// Which of cuBLASLt's algorithms serves a shape is asked once a thread and shape, see lt_product.h.
// Memory: LibTorch's workspace of the stream.
#pragma once

#include <cstdint>

#include "fsdp/kernels/stream.h"
#include "fsdp/plan/spec/dtype.h"

namespace fsdpd::kernels {

struct AddProductArgs {
  const void* residual;  // [rows x outputs], as sum. Null: nothing is added.
  const void* x;         // [rows x inputs]
  const void* weight;    // [outputs x inputs]
  void* sum;             // Not residual's place.
  int64_t rows;
  int64_t outputs;
  int64_t inputs;
  DType type;
};

// False, and nothing is done, where cuBLASLt has no algorithm for the shape.
bool AddProduct(const AddProductArgs& args, Stream stream);

}  // namespace fsdpd::kernels
