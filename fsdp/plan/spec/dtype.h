// The types of numbers that a plan knows. Apart from spec.h because kernels, which nvcc compiles, include it.
#pragma once

#include <cstdint>

namespace fsdpd {

// Sizes of products in FP8 are multiples of so many.
constexpr int kFp8Step = 16;

// Gradients that are clipped to such a norm leave no moment of kFp8 out of its range.
constexpr double kFp8MomentNorm = 4;

// kFp8 is e4m3 where matrices of layers travel and are multiplied, and fsdp/kernels/fp8_moments.h's where an
// optimizer's moments lie; nothing is summed in it.
enum class DType { kFp32, kBf16, kFp16, kFp8 };

inline int64_t BytesOf(DType dtype) { return dtype == DType::kFp32 ? 4 : dtype == DType::kFp8 ? 1 : 2; }

// As YAML writes it.
inline const char* NameOf(DType dtype) {
  switch (dtype) {
    case DType::kFp32:
      return "fp32";
    case DType::kBf16:
      return "bf16";
    case DType::kFp16:
      return "fp16";
    case DType::kFp8:
      return "fp8";
  }
  return "?";
}

}  // namespace fsdpd
