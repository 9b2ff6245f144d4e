// The second copy of a tied embedding. A model with tied embeddings has one matrix for embedding and head;
// some checkpoints store it under the head's name too. The copy is not loaded, so it must be equal: a head
// that was trained on its own would be dropped.
#pragma once

#include <absl/status/status.h>

#include "fsdp/checkpoint/names/param_match.h"

namespace fsdpd {

// Adds a violation to `match` if the copy differs in shape, dtype or any number. Reads both matrices once, in
// pieces of 8 MB; does nothing without a copy. Errors: the reader's. REQUIRES: `match` has no violations.
absl::Status CheckTiedCopy(const TensorReader& source, ParamMatch* match);

}  // namespace fsdpd
