// In what two descriptions of a model differ: the one that a checkpoint holds of the model that it is of,
// and the one that somebody gives along with it. What leaves no trace in shapes (heads, positions, epsilons)
// would otherwise go over wrong without a fault.
//
// Pure function.
#pragma once

#include <string>
#include <vector>

#include "fsdp/plan/spec/spec.h"

namespace fsdpd {

// One a field, "heads is 4 there, and 2 in the checkpoint"; none where they are the same model. How long
// sequences may be is no matter, unless positions are parameters.
std::vector<std::string> Contradictions(const ModelConfig& checkpoint, const ModelConfig& told);

}  // namespace fsdpd
