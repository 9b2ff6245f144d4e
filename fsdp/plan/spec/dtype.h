// Element types of the planner. Separate from spec.h because CUDA kernels, compiled by nvcc, include it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fsdpd {

// Dimensions of FP8 matrix products must be multiples of this.
constexpr int kFp8Step = 16;

// With gradients clipped to at most this norm, no kFp8 moment overflows.
constexpr double kFp8MomentNorm = 4;

// kFp8 is e4m3 for gathered and multiplied weights, and the format of fsdp/kernels/fp8_moment_format.h for
// optimizer moments. No sum is accumulated in kFp8.
enum class DType { kFp32, kBf16, kFp16, kFp8 };

inline int64_t BytesOf(DType dtype) { return dtype == DType::kFp32 ? 4 : dtype == DType::kFp8 ? 1 : 2; }

// The name in YAML.
inline const char* NameOf(DType dtype) {
  constexpr const char* kNames[] = {"fp32", "bf16", "fp16", "fp8"};
  return kNames[static_cast<size_t>(dtype)];
}

}  // namespace fsdpd
