// Single-threaded casts and copies. LibTorch's own start an OpenMP team for each calling thread: a loop over
// 16 threads (base/parallel_for.h) would start 256.
#pragma once

#include <ATen/core/Tensor.h>

namespace fsdpd {

// Like values.to(type). REQUIRES: on the CPU and contiguous; from or to fp32.
at::Tensor SerialCast(const at::Tensor& values, at::ScalarType type);

// Like to.copy_(values). REQUIRES: both contiguous, of the same type and size; `values` on the CPU.
void SerialCopy(const at::Tensor& values, const at::Tensor& to);

}  // namespace fsdpd
