// adapter_config.json of PEFT, for LoRA adapters.
//
// Pure functions.
#pragma once

#include <absl/status/statusor.h>

#include <string>
#include <vector>

#include "fsdp/plan/spec/spec.h"

namespace fsdpd {

inline constexpr char kPeftConfigName[] = "adapter_config.json";

// `target_modules`: as TargetModulesOf (adapter_names.h).
std::string MakePeftConfig(const LoraConfig& lora, const std::vector<std::string>& target_modules);

// What a job with these adapters cannot load, one per line: another rank or scale, and settings beyond plain
// LoRA (DoRA, trained biases, modules_to_save, ranks by module). Empty if it can be loaded. The targets are
// not compared: the tensors show them. DATA_LOSS if the text is not JSON.
absl::StatusOr<std::vector<std::string>> ComparePeftConfig(const std::string& text, const LoraConfig& lora);

}  // namespace fsdpd
