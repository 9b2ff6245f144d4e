// The experts of a Megatron run: which layers have them, how tokens are routed, and what balances them. What
// routes otherwise than a spec can say is a fault, and so is what drops tokens.
#pragma once

#include <absl/strings/string_view.h>

#include <optional>
#include <string>
#include <vector>

#include "client/migrate/conversion.h"

namespace fsdpd {

// Of a model that has none, nothing.
void ConvertExperts(Conversion* conversion, v1::Llama* llama);

// What a list of 0 and 1 as Megatron takes it comes to: Python's "[0]*3+([1,0]*2+[1])*2". Not set for any
// other text, and for more than kMostLayers numbers.
std::optional<std::vector<int>> ReadLayerPattern(absl::string_view text);
constexpr size_t kMostLayers = 100000;

}  // namespace fsdpd
