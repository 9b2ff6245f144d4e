#include "client/text_rules.h"

namespace fsdpd {
namespace {

constexpr FaultLevel kError = FaultLevel::kError;
constexpr FaultLevel kWarn = FaultLevel::kWarn;

}  // namespace

const std::vector<RuleText>& TextRules() {
  static const auto* const rules = new std::vector<RuleText>{
      {"syntax", "the file is YAML, or JSON", kError, "spec"},
      {"control_character", "the file is text: no control characters stand in it", kError, "spec"},
      {"not_utf8", "the file is UTF-8", kError, "spec"},
      {"several_documents", "a file has one spec", kError, "spec"},
      {"alias", "values are written out: no anchors (&name), no aliases (*name)", kError, "spec"},
      {"tag",
       "values have no tags: `!` begins one, so what begins with it is quoted, as in node_selector: '!gpu'",
       kError, "spec"},
      {"too_large", "the file is no larger than a spec may be, and has no more values", kError, "spec"},
      {"too_deep", "values are nested no deeper than a spec may be", kError, "spec"},
      {"bad_key", "a field's name is a plain word before a colon", kError, "spec"},
      {"duplicate_field", "a field is written once", kError, "spec"},
      {"two_of_oneof", "of fields that stand for one another, one is written", kError, "spec"},
      {"no_value", "a field that is written has a value", kError, "spec"},
      {"wrong_type", "a value is of its field's kind: a number, a list, a text, true or false", kError,
       "spec"},
      {"unknown_value", "a value that is chosen from names is one of them", kError, "spec"},
      {"out_of_range", "a number fits its field", kError, "spec"},
      {"bad_set", "--set has path=value, and the path leads to a field", kError, "spec"},
      {"hf_no_config", "the file is there and is a Hugging Face config.json", kError, "model.hf_config"},
      {"hf_not_supported", "what the config asks for is built here", kError, "model.hf_config"},
      {"hf_two_values", "a field that the config has in two places has one value", kError, "model.hf_config"},
      {"hf_dropout", "the config has no dropout: none is trained with", kWarn, "model.hf_config"},
      {"hf_router_loss", "a router's loss is one of each sample and layer, as it is here", kWarn,
       "model.hf_config"},
      {"hf_loss_left_out", "the config has no router's loss that transformers leaves out", kWarn,
       "model.hf_config"},
      {"hf_score_scale", "DeepSeek-V2's scores are scaled as transformers scales them", kWarn,
       "model.hf_config"},
      {"hf_more_tokens", "the config has no layers that predict tokens after the next", kWarn,
       "model.hf_config"},
      {"hf_quantized", "the weights beside the config are not quantized", kWarn, "model.hf_config"},
      {"hf_not_known", "every field of the config is read, or known to have no effect", kWarn,
       "model.hf_config"},
      {"plugin_described_twice", "a plug-in's model is described by a file, or in the spec", kError,
       "model.plugin.description"},
      {"plugin_no_description", "the file of a plug-in's model can be read", kError,
       "model.plugin.description"},
      {"plugin_other_args", "the description was made with these arguments", kError, "model.plugin.args"},
      {"from_and_load", "checkpoint.load, where it is set, is the checkpoint that --from names", kError,
       "checkpoint.load"},
      {"token_file_here", "a token file with an absolute path can be read here, and is not empty", kWarn,
       "data.tokens"},
      {"path_of_node", "a path of the nodes is one that they can open: no ~ and no store's address", kError,
       "spec"},
  };
  return *rules;
}

}  // namespace fsdpd
