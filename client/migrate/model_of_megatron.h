// The model of a Megatron run: its family, told apart by what it is made of, its sizes, its vocabulary as
// Megatron pads it, and how its parameters begin.
#pragma once

#include "client/migrate/conversion.h"

namespace fsdpd {

void ConvertModel(Conversion* conversion);

}  // namespace fsdpd
