// Conversion of a Megatron run's data, batch sizes, length, evaluation, optimizer and learning-rate schedule.
#pragma once

#include "client/migrate/conversion.h"

namespace fsdpd {

// Writes job.data, job.train, job.optimizer and job.schedule. Call after ConvertModel, with job.resources
// set.
void ConvertTraining(SpecConversion* conversion);

}  // namespace fsdpd
