#include "client/spec/text_rules.h"

namespace fsdpd {
namespace {

constexpr ViolationLevel kError = ViolationLevel::kError;
constexpr ViolationLevel kWarn = ViolationLevel::kWarn;

}  // namespace

const std::vector<RuleText>& TextRules() {
  static const auto* const rules = new std::vector<RuleText>{
      {"syntax", "the file must be valid YAML or JSON", kError, "spec"},
      {"control_character", "the file must not contain control characters", kError, "spec"},
      {"not_utf8", "the file must be encoded in UTF-8", kError, "spec"},
      {"several_documents", "a file must contain exactly one document", kError, "spec"},
      {"alias", "YAML anchors (&name) and aliases (*name) are not supported", kError, "spec"},
      {"tag",
       "YAML tags are not supported; quote a value that starts with `!`, for example node_selector: '!gpu'",
       kError, "spec"},
      {"too_large", "the file must have at most 1 MiB and 20,000 values", kError, "spec"},
      {"too_deep", "values must be nested at most 32 levels deep", kError, "spec"},
      {"bad_key", "a field name must be a plain word before a colon", kError, "spec"},
      {"duplicate_field", "a field must be set only once", kError, "spec"},
      {"renamed_field", "a field must have its current name; the error contains it", kError, "spec"},
      {"two_of_oneof", "only one of several alternative fields can be set", kError, "spec"},
      {"no_value", "a field must have a value", kError, "spec"},
      {"wrong_type", "a value must have the type of its field: number, list, string or boolean", kError,
       "spec"},
      {"unknown_value", "an enum value must be one of the names of its field", kError, "spec"},
      {"out_of_range", "a number must fit the type of its field", kError, "spec"},
      {"bad_set", "--set needs PATH=VALUE with the path of a field", kError, "spec"},
      {"hf_no_config", "hf_config must be a readable Hugging Face config.json", kError, "model.hf_config"},
      {"hf_not_supported", "the config must describe a supported model", kError, "model.hf_config"},
      {"hf_two_values", "a field that occurs twice in the config must have the same value", kError,
       "model.hf_config"},
      {"hf_dropout", "dropout is not supported and is ignored", kWarn, "model.hf_config"},
      {"hf_router_loss", "the router loss is computed per sample and layer, unlike in transformers", kWarn,
       "model.hf_config"},
      {"hf_loss_left_out", "the router loss of the config is ignored, as in transformers", kWarn,
       "model.hf_config"},
      {"hf_score_scale", "attention scores of DeepSeek-V2 have the scale of YaRN, unlike in transformers",
       kWarn, "model.hf_config"},
      {"hf_more_tokens", "multi-token prediction layers are not supported and are ignored", kWarn,
       "model.hf_config"},
      {"hf_quantized", "quantized weights next to the config cannot be loaded", kWarn, "model.hf_config"},
      {"hf_not_known", "an unknown field of the config is ignored", kWarn, "model.hf_config"},
      {"plugin_described_twice", "a plug-in model must be described either by a file or in the spec", kError,
       "model.plugin.description"},
      {"plugin_no_description", "the description file of a plug-in must be readable", kError,
       "model.plugin.description"},
      {"plugin_other_args", "args must be those with which the description was made", kError,
       "model.plugin.args"},
      {"package_unreadable", "a package on this machine must be readable and complete", kError,
       "model.package.path"},
      {"package_differs", "other fields than path must be those of the package on this machine", kError,
       "model.package"},
      {"from_and_load", "checkpoint.load and --from must name the same checkpoint", kError,
       "checkpoint.load"},
      {"token_file_here",
       "a token file with an absolute path should be readable on this machine and not empty", kWarn,
       "data.tokens"},
      {"profile_no_map", "a device profile must be a map from keys to numbers", kError, "spec"},
      {"profile_unknown", "the base of a device profile must be a built-in profile", kError, "spec"},
      {"path_of_node",
       "paths on nodes must be local file paths; `~` and URLs of object stores are not supported", kError,
       "spec"},
  };
  return *rules;
}

}  // namespace fsdpd
