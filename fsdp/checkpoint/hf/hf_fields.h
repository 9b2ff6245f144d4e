// Check of the config.json fields that hf_config.cc did not read. Owns the list of fields without effect on
// training, and the list of fields that change the computation of other models.
#pragma once

#include "fsdp/checkpoint/hf/hf_reader.h"

namespace fsdpd {

// Call it after all fields were read. A field that changes the computation is an error (hf_not_supported),
// unless its value has no effect (embedding_multiplier 1). Fields on neither list are named in one warning
// (hf_not_known). Fields of rope_scaling and rope_parameters are judged the same way.
void WarnOfUnread(HfReader* in);

}  // namespace fsdpd
