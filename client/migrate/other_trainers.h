// Detection of configurations of other trainers: torchtitan, DeepSpeed, Hugging Face accelerate, axolotl,
// NeMo, PyTorch Lightning, the config.json of a Hugging Face model, and a job spec. migrate does not convert
// them, but reports their kind in one error. Read as a run_config.yaml, each would produce a dozen unrelated
// errors.
#pragma once

#include <absl/strings/string_view.h>

#include <optional>

#include "base/spec_text/located_violation.h"
#include "base/spec_text/yaml_tree.h"

namespace fsdpd {

// Returns the error not_of_megatron if `text` is TOML, the only one of these formats that is not YAML.
std::optional<LocatedViolation> FindToml(absl::string_view text, const std::string& file);

// Returns the same error if the keys of `root` are those of another trainer or of a job spec.
std::optional<LocatedViolation> FindOtherTrainer(const TextNode& root);

}  // namespace fsdpd
