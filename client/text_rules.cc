#include "client/text_rules.h"

namespace fsdpd {
namespace {

constexpr FaultLevel kError = FaultLevel::kError;
constexpr FaultLevel kWarn = FaultLevel::kWarn;

}  // namespace

const std::vector<RuleText>& TextRules() {
  static const auto* const rules = new std::vector<RuleText>{
      {"syntax", "the file must be valid YAML or JSON", kError, "spec"},
      {"control_character", "control characters are not supported", kError, "spec"},
      {"not_utf8", "the file must be UTF-8", kError, "spec"},
      {"several_documents", "a file must have one document", kError, "spec"},
      {"alias", "anchors (&name) and aliases (*name) are not supported", kError, "spec"},
      {"tag",
       "tags are not supported: a value that starts with `!` must be quoted, as in node_selector: '!gpu'",
       kError, "spec"},
      {"too_large", "the size of a file and its number of values are limited", kError, "spec"},
      {"too_deep", "the nesting depth of values is limited", kError, "spec"},
      {"bad_key", "a key must be a plain word before a colon", kError, "spec"},
      {"duplicate_field", "a field must not be given twice", kError, "spec"},
      {"two_of_oneof", "at most one of several alternative fields may be set", kError, "spec"},
      {"no_value", "a field must have a value", kError, "spec"},
      {"wrong_type", "a value must have the type of its field: a number, a list, a string, true or false",
       kError, "spec"},
      {"unknown_value", "an enum value must be a known name", kError, "spec"},
      {"out_of_range", "a number must be in the range of its field's type", kError, "spec"},
      {"bad_set", "--set must be path=value, and the path must name a field", kError, "spec"},
      {"hf_no_config", "the file must exist and be a Hugging Face config.json", kError, "model.hf_config"},
      {"hf_not_supported", "some features of a config.json are not supported", kError, "model.hf_config"},
      {"hf_two_values", "a field that config.json has in two places must have one value", kError,
       "model.hf_config"},
      {"hf_dropout", "dropout is not supported: the model is trained without it", kWarn, "model.hf_config"},
      {"hf_router_loss", "a router loss other than per sample and layer is not supported", kWarn,
       "model.hf_config"},
      {"hf_loss_left_out", "a router loss that transformers ignores is ignored here too", kWarn,
       "model.hf_config"},
      {"hf_score_scale", "attention scores of DeepSeek-V2 have YaRN's scale, which transformers omits", kWarn,
       "model.hf_config"},
      {"hf_more_tokens", "multi-token prediction layers are not supported: they are ignored", kWarn,
       "model.hf_config"},
      {"hf_quantized", "quantized weights next to the config are not supported", kWarn, "model.hf_config"},
      {"hf_not_known", "an unknown field of config.json is ignored", kWarn, "model.hf_config"},
      {"plugin_described_twice", "model.plugin.description is not supported with a description in the spec",
       kError, "model.plugin.description"},
      {"plugin_no_description", "the description file of a plug-in must be readable", kError,
       "model.plugin.description"},
      {"plugin_other_args", "model.plugin.args must be those of the description", kError,
       "model.plugin.args"},
      {"from_and_load", "checkpoint.load, if set, must be the checkpoint of --from", kError,
       "checkpoint.load"},
      {"token_file_here", "a token file that exists on this machine must be readable and not empty", kWarn,
       "data.tokens"},
      {"path_of_node", "a path on the nodes must not start with ~ or be the address of an object store",
       kError, "spec"},
  };
  return *rules;
}

}  // namespace fsdpd
