// Products of many experts' matrices, each with its own rows, of which only the device knows how many
// there are.
//
// bf16 on Hopper and Blackwell: LibTorch's grouped product, which is CUTLASS's, where widths are
// multiples of 8 and what it reads and writes begins at multiples of 16 bytes. All else:
// plain_grouped_product.h, many times as slow. Neither waits for the device, and both can be
// recorded; LibTorch's takes its tables from its allocator.
#pragma once

#include "fsdp/kernels/plain_grouped_product.h"

namespace fsdpd::kernels {

// Numbers of bf16 in 16 bytes.
constexpr int kGroupedStep = 8;

// REQUIRES: each expert's rows begin at a multiple of kGroupedStep, and are so many at least. `stream` is
// LibTorch's current one.
void GroupedProduct(GroupedForm form, const GroupedProductArgs& args, Stream stream);

// Whether it is LibTorch's.
bool IsFastGroupedProduct(const GroupedProductArgs& args);

}  // namespace fsdpd::kernels
