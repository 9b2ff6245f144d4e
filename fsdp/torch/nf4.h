// Tensors in NF4 (fsdp/kernels/nf4/nf4_format.h), on CPUs and GPUs. Stored as bytes: Nf4Bytes of the
// elements.
#pragma once

#include <ATen/core/Tensor.h>

namespace fsdpd {

// `numbers`: contiguous fp32. `blocks`: on the same device.
void QuantizeNf4(const at::Tensor& numbers, const at::Tensor& blocks);

// `into`: contiguous fp32, bf16 or fp16, on the same device; each number is rounded once.
void DequantizeNf4(const at::Tensor& blocks, const at::Tensor& into);

}  // namespace fsdpd
