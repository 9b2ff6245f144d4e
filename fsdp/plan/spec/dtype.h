// The types of numbers that a plan knows. Apart from spec.h because kernels, which nvcc compiles, include it.
#pragma once

#include <cstdint>

namespace fsdpd {

enum class DType { kFp32, kBf16, kFp16 };

inline int64_t BytesOf(DType dtype) { return dtype == DType::kFp32 ? 4 : 2; }

// As YAML writes it.
inline const char* NameOf(DType dtype) {
  switch (dtype) {
    case DType::kFp32:
      return "fp32";
    case DType::kBf16:
      return "bf16";
    case DType::kFp16:
      return "fp16";
  }
  return "?";
}

}  // namespace fsdpd
