// Writes initial values where they are kept: numbers of normal_numbers.h, into fp32 or into halves
// (halves.h). The bits are those of the CPU (fsdp/model/unit/draw_normals.h), which
// fsdp/optimizer:sharded_params_cuda_test compares.
//
// Bytes that must move for n numbers: 4 n.
#pragma once

#include <cstdint>

#include "fsdp/kernels/normal_numbers.h"
#include "fsdp/kernels/split_fp32.h"
#include "fsdp/kernels/stream.h"

namespace fsdpd::kernels {

// A slice of a parameter: of each `parts` stretches that follow each other in the whole parameter, the one of
// number `part`. Example: columns 4 to 7 of a matrix with 12 columns are stretch 4, parts 3, part 1.
struct ParamSlice {
  int64_t stretch;
  int64_t parts;  // 1: the slice is the whole parameter.
  int64_t part;
};

// The number in the whole parameter of the slice's element i.
FSDPD_HOST_DEVICE inline int64_t WholeElement(const ParamSlice& slice, int64_t i) {
  if (slice.parts == 1) return i;
  const int64_t row = i / slice.stretch;
  return (row * slice.parts + slice.part) * slice.stretch + (i - row * slice.stretch);
}

struct FillNormalsArgs {
  NormalNumbers numbers;
  ParamSlice slice;
  int64_t begin;  // Of the slice's elements.
  int64_t elements;
  float* values;   // [elements]; null where there are halves.
  uint16_t* high;  // Instead of values.
  uint16_t* low;
};

void FillNormals(const FillNormalsArgs& args, Stream stream);

}  // namespace fsdpd::kernels
