// SwiGLU (swiglu.h) of operands with low-rank addends: gate + low matrix^T, and the same for up and, in the
// backward, for the gradient of the product. Thus the wide products of LoRA adapters cost no memory traffic.
// Sums are computed in fp32 on tensor cores and are not rounded; bf16 only.
//
// Minimum memory traffic for n elements: that of SwiGLU, 6 n bytes forward and 12 n backward.
#pragma once

#include <cstdint>

#include "fsdp/kernels/current_stream.h"
#include "fsdp/plan/spec/dtype.h"

namespace fsdpd::kernels {

// low matrix^T, with low [rows x rank] and matrix [width x rank]; strides in elements. Rank 0: no addend.
struct LowRankAddend {
  const void* low = nullptr;
  int64_t low_row = 0;  // Stride of rows. Ranks are adjacent.
  const void* matrix = nullptr;
  int64_t matrix_row = 0;
  int64_t matrix_rank = 0;
  int64_t rank = 0;
};

struct AdaptedSwigluArgs {
  void* gate_up;  // [rows x 2 width]
  void* product;  // [rows x width]
  int64_t rows;
  int64_t width;
  LowRankAddend gate = {}, up = {}, grad_product = {};  // The last one: of the backward.
};

inline bool TakesAdaptedSwiglu(int64_t width, int64_t rank, DType type) {
  return type == DType::kBf16 && width % 8 == 0 && rank <= 32;
}

// REQUIRES (both): TakesAdaptedSwiglu of each addend; gate_up and product are aligned to 16 bytes.
void AdaptedSwigluForward(const AdaptedSwigluArgs& args, Stream stream);

// On entry `product` is its gradient; on return it is the product, and gate_up is the gradient of the sums.
void AdaptedSwigluBackward(const AdaptedSwigluArgs& args, Stream stream);

}  // namespace fsdpd::kernels
