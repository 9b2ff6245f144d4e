// Where two models differ that the numbers of a checkpoint may both belong to: heads, how positions turn and
// what norms add leave no trace in the shapes of parameters, and with another of them the same numbers are
// another model.
//
// Pure.
#pragma once

#include <absl/strings/string_view.h>

#include <string>
#include <vector>

#include "fsdp/plan/spec/spec.h"

namespace fsdpd {

// "heads: 8 there, and 4 in this job", by field as a spec has it, `here` being where `ours` is; none where
// the same numbers are the same model. How long a sequence may be is no difference, but where each position
// has parameters. Of plug-ins nothing is known but what their arguments say.
std::vector<std::string> ModelDifferences(const ModelConfig& ours, const ModelConfig& theirs,
                                          absl::string_view here = "in this job");

}  // namespace fsdpd
