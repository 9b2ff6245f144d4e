// The types of numbers that a plan knows. Apart from spec.h because kernels, which nvcc compiles, include it.
#pragma once

#include <cstdint>

namespace fsdpd {

// kFp8 (e4m3) is how matrices of layers travel and are multiplied; nothing is stored or summed in it.
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
