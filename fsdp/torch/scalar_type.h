// Conversion between DType and LibTorch's scalar types.
#pragma once

#include <c10/core/ScalarType.h>

#include "base/check.h"
#include "fsdp/plan/spec/dtype.h"

namespace fsdpd {

inline at::ScalarType ScalarTypeOf(DType dtype) {
  switch (dtype) {
    case DType::kFp32:
      return at::kFloat;
    case DType::kBf16:
      return at::kBFloat16;
    case DType::kFp16:
      return at::kHalf;
    case DType::kFp8:
      return at::kFloat8_e4m3fn;
  }
  return at::kFloat;
}

// REQUIRES: fp32, bf16 or fp16.
inline DType DTypeOf(at::ScalarType type) {
  FSDPD_CHECK(type == at::kFloat || type == at::kBFloat16 || type == at::kHalf);
  return type == at::kFloat ? DType::kFp32 : type == at::kBFloat16 ? DType::kBf16 : DType::kFp16;
}

}  // namespace fsdpd
