// What a Megatron run trains with: data, batch sizes and length, evaluation, optimizer and learning rate.
#pragma once

#include "client/migrate/conversion.h"

namespace fsdpd {

// Call after ConvertModel; resources are in the job already.
void ConvertTraining(Conversion* conversion);

}  // namespace fsdpd
