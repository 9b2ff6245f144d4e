// Recognizes files that are not a configuration of Megatron: those of torchtitan, DeepSpeed, Hugging Face
// accelerate, axolotl, NeMo and PyTorch Lightning, the config.json of a Hugging Face model, and a job spec.
// migrate does not read them; it prints which one it got. Read as a run_config.yaml, each would be a dozen
// errors about settings that nobody wrote.
#pragma once

#include <absl/strings/string_view.h>

#include <optional>

#include "base/spec_fault.h"
#include "base/yaml_tree.h"

namespace fsdpd {

// An error (not_of_megatron) where `text` is TOML: the only one of these formats that is not YAML.
std::optional<SpecFault> FindToml(absl::string_view text, const std::string& file);

// The same error if the keys of `root` are those of another trainer or of a job spec.
std::optional<SpecFault> FindOtherTrainer(const TextNode& root);

}  // namespace fsdpd
