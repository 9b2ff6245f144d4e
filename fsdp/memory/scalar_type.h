// A plan's precision as LibTorch names it.
#pragma once

#include <c10/core/ScalarType.h>

#include "fsdp/plan/spec.h"

namespace fsdpd {

inline at::ScalarType ScalarTypeOf(DType dtype) {
  switch (dtype) {
    case DType::kFp32:
      return at::kFloat;
    case DType::kBf16:
      return at::kBFloat16;
    case DType::kFp16:
      return at::kHalf;
  }
  return at::kFloat;
}

}  // namespace fsdpd
