// Conversion of a Megatron run's model: family, sizes, padded vocabulary and initialization. Norm, positions
// and feed-forward determine the family: RMSNorm, RoPE and SwiGLU are Llama; LayerNorm, learned positions and
// GELU are GPT-2.
#pragma once

#include "client/migrate/conversion.h"

namespace fsdpd {

// Writes job.model and job.train.initial.
void ConvertModel(SpecConversion* conversion);

}  // namespace fsdpd
