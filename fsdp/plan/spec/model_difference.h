// Differences between two model configurations with the same parameter shapes. Head count, rotary embedding
// and norm epsilon do not show in the shapes of a checkpoint, but loading with other values gives a different
// model.
//
// Pure.
#pragma once

#include <absl/strings/string_view.h>

#include <string>
#include <vector>

#include "fsdp/plan/spec/spec.h"

namespace fsdpd {

// One line per differing field, e.g. "heads: 8 there, and 4 in this job"; `here` replaces "in this job".
// Empty if both configurations compute the same function. A different maximum sequence length counts only if
// positions have parameters. For plug-ins only the arguments are compared. Packages do not differ: a model
// can be exported again, for example for longer sequences.
std::vector<std::string> ModelDifferences(const ModelConfig& ours, const ModelConfig& theirs,
                                          absl::string_view here = "in this job");

}  // namespace fsdpd
