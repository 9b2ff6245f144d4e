// A model's sizes as a Hugging Face config.json, the way back from fsdp/checkpoint/hf_config.h: what a
// conversion writes beside weights.
#pragma once

#include <absl/status/statusor.h>
#include <absl/strings/string_view.h>

#include <string>

#include "fsdp/plan/spec/spec.h"

namespace fsdpd {

// The text of a config.json again, every field of it, with the type of the weights as given ("bfloat16").
// INVALID_ARGUMENT where it is no object.
absl::StatusOr<std::string> RewriteHfConfig(absl::string_view text, absl::string_view dtype);

// Of a model that has no such file, with InitialConfig.deviation as initializer_range. INVALID_ARGUMENT where
// no family of transformers is that model.
absl::StatusOr<std::string> MakeHfConfig(const ModelConfig& model, absl::string_view dtype, double deviation);

}  // namespace fsdpd
