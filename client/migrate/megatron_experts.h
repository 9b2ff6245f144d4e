// Conversion of a Megatron run's mixture-of-experts settings: layers with experts, top-k routing and load
// balancing. Routing that a spec cannot express is a violation, and so is dropping tokens.
#pragma once

#include <absl/strings/string_view.h>

#include <optional>
#include <string>
#include <vector>

#include "client/migrate/conversion.h"

namespace fsdpd {

// Writes llama->experts. Does nothing if num_experts is 0 or unset.
void ConvertExperts(SpecConversion* conversion, v1::Llama* llama);

// Evaluates a Python list expression of 0 and 1, as --moe-layer-freq accepts it: "[0]*3+([1,0]*2+[1])*2".
// Returns nullopt for any other text and for more than kMaxPatternLayers numbers.
std::optional<std::vector<int>> ReadLayerPattern(absl::string_view text);
constexpr size_t kMaxPatternLayers = 100000;

}  // namespace fsdpd
