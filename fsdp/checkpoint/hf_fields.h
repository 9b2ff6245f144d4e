// Fields of a config.json that no reader of hf_config.cc read. This file owns the one list of fields without
// effect on training, and the list of fields that other models compute with.
#pragma once

#include "fsdp/checkpoint/hf_reader.h"

namespace fsdpd {

// Call after all fields were read. A field that changes the computation is an error (hf_not_supported),
// unless its value changes nothing (embedding_multiplier 1). Fields on neither list are one warning
// (hf_not_known) that names them. Fields within rope_scaling and rope_parameters are judged alike.
void TellUnread(HfReader* in);

}  // namespace fsdpd
