// Product with fused residual add: sum = residual + x weight^T, accumulated in fp32 and rounded once.
// cuBLASLt reads the residual in place; LibTorch's addmm first copies it, which costs twice its size in
// memory traffic (an 8B layer at 8192 tokens: 134 MB, twice).
//
// The cuBLASLt algorithm is looked up once per thread and shape, see lt_product.h. Memory: LibTorch's
// cuBLASLt workspace of the stream.
#pragma once

#include <cstdint>

#include "fsdp/kernels/current_stream.h"
#include "fsdp/plan/spec/dtype.h"

namespace fsdpd::kernels {

struct AddProductArgs {
  const void* residual;  // [rows x outputs], like sum. Null: plain product.
  const void* x;         // [rows x inputs]
  const void* weight;    // [outputs x inputs]
  void* sum;             // May be residual.
  int64_t rows;
  int64_t outputs;
  int64_t inputs;
  DType type;
};

// Returns false, without doing anything, if cuBLASLt has no algorithm for the shape.
bool AddProduct(const AddProductArgs& args, Stream stream);

}  // namespace fsdpd::kernels
