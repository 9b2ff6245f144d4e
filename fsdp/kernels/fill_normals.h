// Initialization of parameters on the device with the normal numbers of normal_numbers.h, rounded to the
// nearest number of a type, or as split fp32 (split_bits.h). The bits equal those of the CPU implementation
// (fsdp/model/unit/draw_normals.h); fsdp/optimizer:sharded_params_cuda_test compares the two.
//
// Minimum memory traffic for n numbers: their bytes.
#pragma once

#include <cstdint>

#include "fsdp/kernels/current_stream.h"
#include "fsdp/kernels/normal_numbers.h"
#include "fsdp/kernels/split_bits.h"
#include "fsdp/plan/spec/dtype.h"

namespace fsdpd::kernels {

// A tensor-parallel shard of a parameter. The whole parameter is a sequence of groups of `parts` consecutive
// stretches; the shard is stretch number `part` of each group. Example: columns 4 to 7 of a matrix with 12
// columns are stretch 4, parts 3, part 1.
struct TensorShard {
  int64_t stretch;
  int64_t parts;  // 1: not sharded.
  int64_t part;
};

// Maps element i of the shard to its index in the whole parameter.
FSDPD_HOST_DEVICE inline int64_t FullElement(const TensorShard& slice, int64_t i) {
  if (slice.parts == 1) return i;
  const int64_t row = i / slice.stretch;
  return (row * slice.parts + slice.part) * slice.stretch + (i - row * slice.stretch);
}

struct FillNormalsArgs {
  NormalNumbers numbers;
  TensorShard slice;
  int64_t begin;  // First element, counted in the shard.
  int64_t elements;
  void* values;   // [elements]; of split fp32 the high halves.
  DType type;     // Of values; unless split fp32.
  uint16_t* low;  // The low halves of split fp32; else null.
};

void FillNormals(const FillNormalsArgs& args, Stream stream);

}  // namespace fsdpd::kernels
