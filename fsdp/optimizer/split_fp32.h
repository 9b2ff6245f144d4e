// Split fp32: fp32 values in two flat tensors of 16 bits each (fsdp/kernels/split_bits.h). The first one is
// the bf16 value and can be sent as it is; with the low 16 bits it takes 4 bytes per value, like fp32.
//
// Thread safety: different ranges may be written concurrently. Exceptions of LibTorch pass through.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace fsdpd {

struct SplitFp32 {
  at::Tensor high;  // bf16 value.
  at::Tensor low;   // The low 16 bits.

  // Zeros.
  static SplitFp32 Make(int64_t elements, at::Device device);

  bool defined() const { return high.defined(); }

  // Writes flat fp32 values on the CPU, starting at element `begin`.
  void Write(int64_t begin, const at::Tensor& values) const;

  // Returns all values, fp32 on the CPU.
  at::Tensor Read() const;
};

}  // namespace fsdpd
