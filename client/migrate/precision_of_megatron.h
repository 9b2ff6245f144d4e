// The types of numbers that a Megatron run computes, sends and keeps in, its loss scale and its FP8.
#pragma once

#include "client/migrate/conversion.h"

namespace fsdpd {

// Call after ConvertModel.
void ConvertPrecision(Conversion* conversion);

}  // namespace fsdpd
