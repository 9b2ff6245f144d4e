// Conversion of a Megatron run's precision: dtypes of compute, gradients, main parameters and optimizer
// moments, the loss scale, and FP8.
#pragma once

#include "client/migrate/conversion.h"

namespace fsdpd {

// Writes job.precision. Call after ConvertModel.
void ConvertPrecision(SpecConversion* conversion);

}  // namespace fsdpd
