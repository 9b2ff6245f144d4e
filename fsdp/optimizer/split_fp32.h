// fp32 numbers of a rank in two flat tensors of 16 bits each, as fsdp/kernels/split_fp32.h splits them: the
// first is their bf16 and can be sent as it is. Four bytes a number, as fp32 has.
//
// Thread safety: different ranges may be written at once. LibTorch's exceptions pass through.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace fsdpd {

struct SplitFp32 {
  at::Tensor high;  // bf16.
  at::Tensor low;   // int16, for its bits.

  // Zeros.
  static SplitFp32 Make(int64_t elements, at::Device device);

  bool defined() const { return high.defined(); }

  // `values`: flat fp32 on the CPU, for the numbers from `begin` on.
  void Write(int64_t begin, const at::Tensor& values) const;

  // All numbers, fp32 on the CPU.
  at::Tensor Read() const;
};

}  // namespace fsdpd
