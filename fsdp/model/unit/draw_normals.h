// Vectorized CPU implementation of fsdp/kernels/normal_numbers.h for contiguous runs, with the widest vectors
// that the processor supports. Every instruction set produces the same bits.
//
// Pure.
#pragma once

#include <cstdint>

#include "fsdp/kernels/normal_numbers.h"

namespace fsdpd {

enum class VectorSet { kBaseline, kAvx2, kAvx512 };

// Whether this build and this processor support the set.
bool HasVectorSet(VectorSet set);
VectorSet WidestVectorSet();

// Writes numbers [begin, begin + elements) to `values`. REQUIRES: HasVectorSet(set).
void DrawNormals(VectorSet set, const kernels::NormalNumbers& numbers, int64_t begin, int64_t elements,
                 float* values);

}  // namespace fsdpd
