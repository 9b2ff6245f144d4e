// StepScalars for tests.
#pragma once

#include <ATen/ops/full.h>

#include "fsdp/optimizer/optimizer.h"

namespace fsdpd {

inline StepScalars ScalarsOf(double learning_rate, double grad_divisor = 1, bool found_nonfinite = false,
                             at::Device device = at::kCPU) {
  const auto scalar = [device](double value, at::ScalarType type) {
    return at::full({}, value, at::TensorOptions(device).dtype(type));
  };
  return {scalar(learning_rate, at::kDouble), scalar(grad_divisor, at::kFloat),
          scalar(found_nonfinite ? 1 : 0, at::kFloat)};
}

}  // namespace fsdpd
