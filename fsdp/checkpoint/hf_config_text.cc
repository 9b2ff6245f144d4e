#include "fsdp/checkpoint/hf_config_text.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <absl/strings/str_join.h>

#include <regex>
#include <utility>
#include <variant>
#include <vector>

#include "base/json_quote.h"
#include "base/yaml_tree.h"

namespace fsdpd {
namespace {

bool IsJsonLiteral(const std::string& text) {
  static const std::regex number("-?(0|[1-9][0-9]*)(\\.[0-9]+)?([eE][-+]?[0-9]+)?");
  return text == "true" || text == "false" || std::regex_match(text, number);
}

std::string Json(const TextNode& node, int indent) {
  const std::string pad = absl::StrCat("\n", std::string(indent, ' '));
  switch (node.kind) {
    case TextNode::Kind::kNull:
      return "null";
    case TextNode::Kind::kScalar:
      return !node.quoted && IsJsonLiteral(node.text) ? node.text : JsonQuoted(node.text);
    case TextNode::Kind::kSequence:
    case TextNode::Kind::kMap:
      break;
  }
  const bool is_map = node.kind == TextNode::Kind::kMap;
  if (node.children.empty()) return is_map ? "{}" : "[]";
  std::vector<std::string> parts;
  for (const TextNode& child : node.children) {
    parts.push_back(absl::StrCat(pad, "  ", is_map ? absl::StrCat(JsonQuoted(child.key), ": ") : "",
                                 Json(child, indent + 2)));
  }
  return absl::StrCat(is_map ? "{" : "[", absl::StrJoin(parts, ","), pad, is_map ? "}" : "]");
}

// Lines of an object.
class Fields {
 public:
  void Json(absl::string_view key, absl::string_view json) {
    lines_.push_back(absl::StrCat("  ", JsonQuoted(key), ": ", json));
  }
  void Text(absl::string_view key, absl::string_view text) { Json(key, JsonQuoted(text)); }
  void Size(absl::string_view key, int64_t size) { Json(key, absl::StrCat(size)); }
  void Number(absl::string_view key, double number) { Json(key, NumberText(number)); }
  void Flag(absl::string_view key, bool flag) { Json(key, flag ? "true" : "false"); }

  // What a person would write: all digits that were given, and no more.
  static std::string NumberText(double number) { return absl::StrFormat("%.15g", number); }

  std::string Object() const { return absl::StrCat("{\n", absl::StrJoin(lines_, ",\n"), "\n}\n"); }

 private:
  std::vector<std::string> lines_;
};

void AddRope(const LlamaConfig& model, Fields* fields) {
  fields->Number("rope_theta", model.rope_theta);
  const RopeScaling& rope = model.rope_scaling;
  if (rope.factor == 1) return;
  fields->Json("rope_scaling",
               absl::StrCat("{\"rope_type\": \"llama3\", \"factor\": ", Fields::NumberText(rope.factor),
                            ", \"low_freq_factor\": ", Fields::NumberText(rope.low_freq_factor),
                            ", \"high_freq_factor\": ", Fields::NumberText(rope.high_freq_factor),
                            ", \"original_max_position_embeddings\": ", rope.original_positions, "}"));
}

absl::StatusOr<std::string> Make(const LlamaConfig& model, absl::string_view dtype) {
  if (model.qk_norm && model.attention_bias) {
    return absl::InvalidArgumentError(
        "no family of transformers has both norms and biases of queries and keys, as this model");
  }
  Fields fields;
  const char* family = model.qk_norm ? "Qwen3" : model.attention_bias ? "Qwen2" : "Llama";
  fields.Json("architectures", absl::StrCat("[\"", family, "ForCausalLM\"]"));
  fields.Text("model_type", model.qk_norm ? "qwen3" : model.attention_bias ? "qwen2" : "llama");
  fields.Size("vocab_size", model.vocab_size);
  fields.Size("hidden_size", model.hidden_size);
  fields.Size("intermediate_size", model.intermediate_size);
  fields.Size("num_hidden_layers", model.layers);
  fields.Size("num_attention_heads", model.heads);
  fields.Size("num_key_value_heads", model.kv_heads);
  fields.Size("head_dim", model.head_size);
  if (model.positions > 0) fields.Size("max_position_embeddings", model.positions);
  fields.Number("rms_norm_eps", model.norm_epsilon);
  AddRope(model, &fields);
  fields.Text("hidden_act", "silu");
  fields.Flag("tie_word_embeddings", model.tied_embeddings);
  fields.Text("torch_dtype", dtype);
  return fields.Object();
}

absl::StatusOr<std::string> Make(const Gpt2Config& model, absl::string_view dtype) {
  Fields fields;
  fields.Json("architectures", "[\"GPT2LMHeadModel\"]");
  fields.Text("model_type", "gpt2");
  fields.Size("vocab_size", model.vocab_size);
  fields.Size("n_embd", model.hidden_size);
  fields.Size("n_inner", model.intermediate_size);
  fields.Size("n_layer", model.layers);
  fields.Size("n_head", model.heads);
  fields.Size("n_positions", model.positions);
  fields.Number("layer_norm_epsilon", model.norm_epsilon);
  fields.Text("activation_function", "gelu_new");
  for (const char* rate : {"attn_pdrop", "embd_pdrop", "resid_pdrop"}) fields.Json(rate, "0.0");
  fields.Flag("tie_word_embeddings", model.tied_embeddings);
  fields.Text("torch_dtype", dtype);
  return fields.Object();
}

absl::StatusOr<std::string> Make(const PluginConfig& /*model*/, absl::string_view /*dtype*/) {
  return absl::InvalidArgumentError("a plug-in's model is none of transformers'");
}

}  // namespace

absl::StatusOr<std::string> RewriteHfConfig(absl::string_view text, absl::string_view dtype) {
  TextNode root;
  if (!ParseYaml(text, "", &root).empty() || root.kind != TextNode::Kind::kMap) {
    return absl::InvalidArgumentError("is not a config.json");
  }
  TextNode type;
  type.kind = TextNode::Kind::kScalar;
  type.quoted = true;
  type.text = std::string(dtype);
  type.key = "torch_dtype";
  bool written = false;
  for (TextNode& field : root.children) {
    if (field.key != "torch_dtype" && field.key != "dtype") continue;  // Newer files have the second.
    type.key = field.key;
    field = type;
    written = true;
  }
  if (!written) root.children.push_back(std::move(type));
  return absl::StrCat(Json(root, 0), "\n");
}

absl::StatusOr<std::string> MakeHfConfig(const ModelConfig& model, absl::string_view dtype) {
  return std::visit([dtype](const auto& config) { return Make(config, dtype); }, model);
}

}  // namespace fsdpd
