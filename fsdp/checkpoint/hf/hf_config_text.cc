#include "fsdp/checkpoint/hf/hf_config_text.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <absl/strings/str_join.h>

#include <numeric>
#include <utility>
#include <variant>
#include <vector>

#include "base/json_quote.h"
#include "base/spec_text/yaml_tree.h"
#include "fsdp/checkpoint/format/json.h"
#include "fsdp/checkpoint/hf/hf_config.h"

namespace fsdpd {
namespace {

bool IsJsonLiteral(const std::string& text) {
  const absl::StatusOr<JsonValue> value = ParseJson(text);
  return value.ok() && (value->kind == JsonValue::Kind::kNumber || value->kind == JsonValue::Kind::kFlag);
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

// The lines of a JSON object.
class Fields {
 public:
  void Json(absl::string_view key, absl::string_view json) {
    lines_.push_back(absl::StrCat("  ", JsonQuoted(key), ": ", json));
  }
  void Text(absl::string_view key, absl::string_view text) { Json(key, JsonQuoted(text)); }
  void Size(absl::string_view key, int64_t size) { Json(key, absl::StrCat(size)); }
  void Number(absl::string_view key, double number) { Json(key, NumberText(number)); }
  void Flag(absl::string_view key, bool flag) { Json(key, flag ? "true" : "false"); }

  // Shortest text with up to 15 digits.
  static std::string NumberText(double number) { return absl::StrFormat("%.15g", number); }

  std::string Object() const { return absl::StrCat("{\n", absl::StrJoin(lines_, ",\n"), "\n}\n"); }

 private:
  std::vector<std::string> lines_;
};

void AddType(const std::string& type, Fields* fields) {
  fields->Json("architectures", absl::StrCat("[\"", ArchitectureOf(type), "\"]"));
  fields->Text("model_type", type);
}

void AddWeights(bool tied_embeddings, absl::string_view dtype, double deviation, Fields* fields) {
  fields->Flag("tie_word_embeddings", tied_embeddings);
  fields->Number("initializer_range", deviation);
  fields->Text("torch_dtype", dtype);
}

void AddRope(const LlamaConfig& model, Fields* fields) {
  fields->Number("rope_theta", model.rope_theta);
  const RopeScaling& rope = model.rope_scaling;
  if (rope.factor == 1) return;
  const auto number = [](absl::string_view key, double value) {
    return absl::StrCat("\"", key, "\": ", Fields::NumberText(value), ", ");
  };
  fields->Json(
      "rope_scaling",
      absl::StrCat("{\"rope_type\": \"", rope.yarn ? "yarn" : "llama3", "\", ", number("factor", rope.factor),
                   number(rope.yarn ? "beta_slow" : "low_freq_factor", rope.low_freq_factor),
                   number(rope.yarn ? "beta_fast" : "high_freq_factor", rope.high_freq_factor),
                   rope.yarn ? number("mscale", rope.mscale) : "",
                   rope.yarn ? number("mscale_all_dim", rope.mscale_all_dim) : "",
                   "\"original_max_position_embeddings\": ", rope.original_positions, "}"));
}

void AddExperts(const ExpertsConfig& experts, absl::string_view type, Fields* fields) {
  fields->Size("num_experts_per_tok", experts.per_token);
  if (type == "mixtral") {
    fields->Size("num_local_experts", experts.count);
    fields->Json("sliding_window", "null");
    return;
  }
  fields->Size("moe_intermediate_size", experts.intermediate_size);
  fields->Flag("norm_topk_prob", experts.normalized);
  if (type == "dots1" || type == "deepseek_v2" || type == "deepseek_v3") {
    fields->Size("n_routed_experts", experts.count);
    fields->Size("n_shared_experts", experts.shared_intermediate_size / experts.intermediate_size);
    fields->Size("n_group", experts.groups);
    fields->Size("topk_group", experts.groups_per_token);
    fields->Number("routed_scaling_factor", experts.weight_scale);
    fields->Size("first_k_dense_replace", experts.dense_layers);
    if (type == "deepseek_v2") {
      fields->Text("topk_method", experts.groups > 1 ? "group_limited_greedy" : "greedy");
      fields->Text("scoring_func", "softmax");
    }
    if (type == "dots1") fields->Json("sliding_window", "null");
    return;
  }
  fields->Size("num_experts", experts.count);
  std::vector<int64_t> dense(experts.dense_layers);
  std::iota(dense.begin(), dense.end(), 0);
  fields->Json("mlp_only_layers", absl::StrCat("[", absl::StrJoin(dense, ", "), "]"));
}

void AddLatent(const LlamaConfig& model, absl::string_view type, Fields* fields) {
  const LatentConfig& latent = model.latent;
  fields->Json("q_lora_rank", latent.query_rank > 0 ? absl::StrCat(latent.query_rank) : "null");
  fields->Size("kv_lora_rank", latent.rank);
  fields->Size("qk_nope_head_dim", latent.plain_head_size);
  fields->Size("qk_rope_head_dim", latent.rotary_head_size);
  fields->Size("v_head_dim", latent.value_head_size);
  if (type == "deepseek_v3") fields->Flag("rope_interleave", latent.interleaved);
  if (model.experts.count == 0) fields->Size("first_k_dense_replace", model.layers);
}

absl::StatusOr<std::string> Make(const LlamaConfig& model, absl::string_view dtype, double deviation) {
  const std::string type = TransformersType(model);
  if (type.empty()) {
    return absl::InvalidArgumentError(
        "no Transformers family has this model's combination of norms, biases and experts");
  }
  Fields fields;
  AddType(type, &fields);
  fields.Size("vocab_size", model.vocab_size);
  fields.Size("hidden_size", model.hidden_size);
  // Mixtral's intermediate_size is that of its experts.
  fields.Size("intermediate_size",
              type == "mixtral" ? model.experts.intermediate_size : model.intermediate_size);
  fields.Size("num_hidden_layers", model.layers);
  fields.Size("num_attention_heads", model.heads);
  fields.Size("num_key_value_heads", model.kv_heads);
  if (model.latent) {
    AddLatent(model, type, &fields);
  } else {
    fields.Size("head_dim", model.head_size);
  }
  if (model.positions > 0) fields.Size("max_position_embeddings", model.positions);
  fields.Number("rms_norm_eps", model.norm_epsilon);
  AddRope(model, &fields);
  if (model.experts.count > 0) AddExperts(model.experts, type, &fields);
  fields.Text("hidden_act", "silu");
  AddWeights(model.tied_embeddings, dtype, deviation, &fields);
  return fields.Object();
}

absl::StatusOr<std::string> Make(const Gpt2Config& model, absl::string_view dtype, double deviation) {
  Fields fields;
  AddType("gpt2", &fields);
  fields.Size("vocab_size", model.vocab_size);
  fields.Size("n_embd", model.hidden_size);
  fields.Size("n_inner", model.intermediate_size);
  fields.Size("n_layer", model.layers);
  fields.Size("n_head", model.heads);
  fields.Size("n_positions", model.positions);
  fields.Number("layer_norm_epsilon", model.norm_epsilon);
  fields.Text("activation_function", "gelu_new");
  for (const char* rate : {"attn_pdrop", "embd_pdrop", "resid_pdrop"}) fields.Json(rate, "0.0");
  AddWeights(model.tied_embeddings, dtype, deviation, &fields);
  return fields.Object();
}

absl::StatusOr<std::string> Make(const PluginConfig& /*model*/, absl::string_view /*dtype*/,
                                 double /*deviation*/) {
  return absl::InvalidArgumentError("a plug-in model has no Transformers family");
}

absl::StatusOr<std::string> Make(const PackageConfig& /*model*/, absl::string_view /*dtype*/,
                                 double /*deviation*/) {
  return absl::InvalidArgumentError(
      "a package does not name its Transformers family; set checkpoint.export: hf in its job instead");
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

absl::StatusOr<std::string> MakeHfConfig(const ModelConfig& model, absl::string_view dtype,
                                         double deviation) {
  return std::visit([&](const auto& config) { return Make(config, dtype, deviation); }, model);
}

}  // namespace fsdpd
