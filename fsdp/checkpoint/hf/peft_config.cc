#include "fsdp/checkpoint/hf/peft_config.h"

#include <absl/status/statusor.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <absl/strings/str_join.h>

#include <cmath>

#include "base/check.h"
#include "base/json_quote.h"
#include "fsdp/checkpoint/format/json.h"

namespace fsdpd {
namespace {

// Relative; alpha may be written with few digits.
constexpr double kEqualScales = 1e-6;

bool IsSet(const JsonValue& value) {
  switch (value.kind) {
    case JsonValue::Kind::kNull:
      return false;
    case JsonValue::Kind::kFlag:
      return value.text == "true";
    case JsonValue::Kind::kNumber:
      return value.text != "0" && value.text != "0.0";
    case JsonValue::Kind::kText:
      return !value.text.empty() && value.text != "none";
    default:
      return !value.items.empty();
  }
}

// Nullopt if it is absent or not a number.
std::optional<double> NumberAt(const JsonValue& config, const char* key) {
  const JsonValue* value = config.Find(key);
  double number = 0;
  if (value == nullptr || value->kind != JsonValue::Kind::kNumber || !absl::SimpleAtod(value->text, &number))
    return std::nullopt;
  return number;
}

}  // namespace

std::string MakePeftConfig(const LoraConfig& lora, const std::vector<std::string>& target_modules) {
  const auto quoted = [](std::string* out, const std::string& name) {
    absl::StrAppend(out, "    ", JsonQuoted(name));
  };
  const std::string base = lora.base_model.empty() ? "null" : JsonQuoted(lora.base_model);
  return absl::StrCat("{\n  \"base_model_name_or_path\": ", base,
                      ",\n  \"bias\": \"none\",\n  \"fan_in_fan_out\": false,\n  \"inference_mode\": true,\n"
                      "  \"init_lora_weights\": true,\n  \"lora_alpha\": ",
                      absl::StrFormat("%.17g", lora.alpha),
                      ",\n  \"lora_dropout\": 0.0,\n  \"peft_type\": \"LORA\",\n  \"r\": ", lora.rank,
                      ",\n  \"target_modules\": [\n", absl::StrJoin(target_modules, ",\n", quoted),
                      "\n  ],\n  \"task_type\": \"CAUSAL_LM\",\n  \"use_dora\": false,\n  \"use_rslora\": ",
                      lora.rank_stabilized ? "true" : "false", "\n}\n");
}

absl::StatusOr<std::vector<std::string>> ComparePeftConfig(const std::string& text, const LoraConfig& lora) {
  FSDPD_ASSIGN_OR_RETURN(const JsonValue config, ParseJson(text));
  std::vector<std::string> differences;
  const JsonValue* type = config.Find("peft_type");
  if (type == nullptr || type->text != "LORA")
    differences.push_back(absl::StrCat("peft_type: not supported (got ",
                                       type == nullptr ? "none" : type->text, ", want LORA)"));
  for (const char* key : {"use_dora", "bias", "modules_to_save", "rank_pattern", "alpha_pattern",
                          "fan_in_fan_out", "lora_bias", "target_parameters", "trainable_token_indices"}) {
    const JsonValue* value = config.Find(key);
    if (value != nullptr && IsSet(*value)) differences.push_back(absl::StrCat(key, ": not supported"));
  }
  const std::optional<double> rank = NumberAt(config, "r"), alpha = NumberAt(config, "lora_alpha");
  if (!rank.has_value() || *rank != static_cast<double>(lora.rank)) {
    differences.push_back(absl::StrCat("r: differs from train.lora.rank (got ",
                                       rank.has_value() ? absl::StrCat(*rank) : "none", ", want ", lora.rank,
                                       ")"));
    return differences;
  }
  const JsonValue* rslora = config.Find("use_rslora");
  const bool stabilized = rslora != nullptr && rslora->text == "true";
  const double scale = alpha.value_or(0) / (stabilized ? std::sqrt(*rank) : *rank);
  if (std::fabs(scale - lora.scale()) > kEqualScales * lora.scale()) {
    differences.push_back(absl::StrCat("lora_alpha: its scale differs from that of train.lora (got ", scale,
                                       ", want ", lora.scale(),
                                       "); set train.lora.alpha: ", alpha.value_or(0),
                                       " and rank_stabilized: ", stabilized ? "true" : "false"));
  }
  return differences;
}

}  // namespace fsdpd
