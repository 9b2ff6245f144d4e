// silu(gate) * up, computed in fp32 and rounded once. A row has its gates and then its ups, as one product
// with both matrices leaves them.
//
// Bytes that must move for n numbers of c bytes: 3 n c forward, 6 n c backward (an 8B layer at 8192 tokens:
// 0.70 and 1.41 GB).
#pragma once

#include <cstdint>

#include "fsdp/kernels/stream.h"
#include "fsdp/plan/spec/dtype.h"

namespace fsdpd::kernels {

// gate_up: [rows x 2 width]; product: [rows x width].
void SwigluForward(const void* gate_up, void* product, int64_t rows, int64_t width, DType type,
                   Stream stream);

// Overwrites gates and ups with their gradients, and the product's gradient with the product: what was read
// for the one is all that the other needs.
void SwigluBackward(void* grad_product, void* gate_up, int64_t rows, int64_t width, DType type,
                    Stream stream);

}  // namespace fsdpd::kernels
