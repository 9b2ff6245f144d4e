// Writer of a Hugging Face config.json for a model, the inverse of fsdp/checkpoint/hf/hf_config.h.
// Conversions put the file next to the weights.
#pragma once

#include <absl/status/statusor.h>
#include <absl/strings/string_view.h>

#include <string>

#include "fsdp/plan/spec/spec.h"

namespace fsdpd {

// Rewrites the text of a config.json with all of its fields, and with `dtype` as the weights' type
// ("bfloat16"). INVALID_ARGUMENT if it is not a JSON object.
absl::StatusOr<std::string> RewriteHfConfig(absl::string_view text, absl::string_view dtype);

// For a model without such a file, with InitialConfig.deviation as initializer_range. INVALID_ARGUMENT if no
// transformers family matches the model.
absl::StatusOr<std::string> MakeHfConfig(const ModelConfig& model, absl::string_view dtype, double deviation);

}  // namespace fsdpd
