// Grouped matrix product: one product per expert, each over its own rows, with row counts that only the
// device knows.
//
// bf16 on Hopper and Blackwell uses LibTorch's grouped GEMM (CUTLASS), which needs widths that are multiples
// of 8 and 16-byte aligned operands. All other cases fall back to plain_grouped_product.h, which is many
// times slower. Neither synchronizes with the device, and both can be captured in a CUDA graph; LibTorch's
// allocates its tables from the caching allocator.
#pragma once

#include "fsdp/kernels/experts/plain_grouped_product.h"

namespace fsdpd::kernels {

// bf16 elements in 16 bytes.
constexpr int kGroupedStep = 8;

// REQUIRES: the rows of each expert start at a multiple of kGroupedStep and number at least kGroupedStep.
// `stream` is LibTorch's current stream.
void GroupedProduct(GroupedForm form, const GroupedProductArgs& args, Stream stream);

}  // namespace fsdpd::kernels
