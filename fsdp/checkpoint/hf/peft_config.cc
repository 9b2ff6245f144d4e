#include "fsdp/checkpoint/hf/peft_config.h"

#include <absl/status/statusor.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <absl/strings/str_join.h>

#include <cmath>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/json_quote.h"
#include "fsdp/checkpoint/format/json.h"
#include "fsdp/data/input_file.h"
#include "fsdp/plan/spec/defaults.h"

namespace fsdpd {
namespace {

// Relative; alpha may be written with few digits.
constexpr double kEqualScales = 1e-6;
constexpr double kMaxRank = 1 << 20;  // Larger than any matrix.
constexpr double kPeftDefault = 8;    // PEFT's, of r and lora_alpha.

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

// A value of another type is reported.
double TakeNumber(const JsonValue& config, const char* key, double missing,
                  std::vector<std::string>* violations) {
  const std::optional<double> number = NumberAt(config, key);
  const JsonValue* value = config.Find(key);
  if (value == nullptr || number.has_value()) return number.value_or(missing);
  violations->push_back(absl::StrCat(key, ": is not a number"));
  return missing;
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

absl::StatusOr<PeftConfig> ReadPeftConfig(const std::string& text) {
  FSDPD_ASSIGN_OR_RETURN(const JsonValue config, ParseJson(text));
  PeftConfig read;
  const JsonValue* type = config.Find("peft_type");
  if (type == nullptr || type->text != "LORA")
    read.unsupported.push_back(absl::StrCat("peft_type: not supported (got ",
                                            type == nullptr ? "none" : type->text, ", want LORA)"));
  for (const char* key : {"use_dora", "bias", "modules_to_save", "rank_pattern", "alpha_pattern",
                          "fan_in_fan_out", "lora_bias", "target_parameters", "trainable_token_indices",
                          "alora_invocation_tokens", "layer_replication", "arrow_config"}) {
    const JsonValue* value = config.Find(key);
    if (value != nullptr && IsSet(*value)) read.unsupported.push_back(absl::StrCat(key, ": not supported"));
  }
  // PiSSA, OLoRA, CorDA and LoftQ change the weights of the base model.
  const JsonValue* init = config.Find("init_lora_weights");
  if (init != nullptr && init->kind == JsonValue::Kind::kText && init->text != "gaussian" &&
      init->text != "orthogonal" && init->text != "eva")
    read.unsupported.push_back(absl::StrCat("init_lora_weights: ", init->text, " is not supported"));
  read.dropout = NumberAt(config, "lora_dropout").value_or(0);
  const double rank = TakeNumber(config, "r", kPeftDefault, &read.unsupported);
  const double alpha = TakeNumber(config, "lora_alpha", kPeftDefault, &read.unsupported);
  if (rank >= 1 && rank <= kMaxRank && rank == std::floor(rank)) {
    read.lora.rank = static_cast<int64_t>(rank);
  } else {
    read.unsupported.push_back(absl::StrCat("r: invalid rank ", rank));
  }
  if (!(alpha > 0 && alpha <= kMaxLoraAlpha))
    read.unsupported.push_back(absl::StrCat("lora_alpha: invalid number ", alpha));
  read.lora.alpha = alpha;
  const JsonValue* stabilized = config.Find("use_rslora");
  read.lora.rank_stabilized = stabilized != nullptr && stabilized->text == "true";
  if (stabilized != nullptr && stabilized->kind == JsonValue::Kind::kText)
    read.unsupported.push_back("use_rslora: is a text (want true or false)");
  const JsonValue* base = config.Find("base_model_name_or_path");
  if (base != nullptr && base->kind == JsonValue::Kind::kText) read.lora.base_model = base->text;
  return read;
}

absl::StatusOr<PeftConfig> PeftConfigOf(const std::string& directory) {
  const std::string path = absl::StrCat(directory, "/", kPeftConfigName);
  FSDPD_ASSIGN_OR_RETURN(const std::string text, ReadInputFile(path, JsonLimits().bytes));
  absl::StatusOr<PeftConfig> config = ReadPeftConfig(text);
  if (config.ok()) return config;
  return absl::Status(config.status().code(), absl::StrCat(path, ": ", config.status().message()));
}

std::vector<std::string> DifferencesOf(const PeftConfig& config, const LoraConfig& lora) {
  std::vector<std::string> differences = config.unsupported;
  const LoraConfig& theirs = config.lora;
  if (!differences.empty()) return differences;
  if (theirs.rank != lora.rank) {
    differences.push_back(
        absl::StrCat("r: differs from train.lora.rank (got ", theirs.rank, ", want ", lora.rank, ")"));
  } else if (std::fabs(theirs.scale() - lora.scale()) > kEqualScales * lora.scale()) {
    differences.push_back(absl::StrCat("lora_alpha: its scale differs from that of train.lora (got ",
                                       theirs.scale(), ", want ", lora.scale(),
                                       "); set train.lora.alpha: ", theirs.alpha,
                                       " and rank_stabilized: ", theirs.rank_stabilized ? "true" : "false"));
  }
  return differences;
}

}  // namespace fsdpd
