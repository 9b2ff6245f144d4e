// Casts and copies that stay on the calling thread. LibTorch's own start an OpenMP team for each thread that
// calls them: a loop over 16 threads (base/parallel_for.h) would start 256.
#pragma once

#include <ATen/core/Tensor.h>

namespace fsdpd {

// As values.to(type). REQUIRES: on the CPU and contiguous; from or to fp32.
at::Tensor SerialCast(const at::Tensor& values, at::ScalarType type);

// As to.copy_(values). REQUIRES: both contiguous, of the same type and size; `values` on the CPU.
void SerialCopy(const at::Tensor& values, const at::Tensor& to);

}  // namespace fsdpd
