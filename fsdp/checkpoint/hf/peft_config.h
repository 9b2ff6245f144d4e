// adapter_config.json of PEFT, for LoRA adapters.
//
// Pure functions, except PeftConfigOf.
#pragma once

#include <absl/status/statusor.h>

#include <string>
#include <vector>

#include "fsdp/plan/spec/spec.h"

namespace fsdpd {

inline constexpr char kPeftConfigName[] = "adapter_config.json";

// `target_modules`: as TargetModulesOf (adapter_names.h).
std::string MakePeftConfig(const LoraConfig& lora, const std::vector<std::string>& target_modules);

struct PeftConfig {
  LoraConfig lora;  // Without targets: the tensors show them. Its rank is 0 if the text has none.
  // Settings beyond plain LoRA (DoRA, trained biases, modules_to_save, ranks by module, initializations that
  // change the base model), one per line.
  std::vector<std::string> unsupported;
  double dropout = 0;
};
// DATA_LOSS if the text is not JSON.
absl::StatusOr<PeftConfig> ReadPeftConfig(const std::string& text);

// Of a directory. NOT_FOUND if it has no adapter_config.json.
absl::StatusOr<PeftConfig> PeftConfigOf(const std::string& directory);

// Lists the differences that prevent a job with adapters `lora` from loading these: another rank or scale,
// and unsupported settings. Empty if it can load them.
std::vector<std::string> DifferencesOf(const PeftConfig& config, const LoraConfig& lora);

}  // namespace fsdpd
