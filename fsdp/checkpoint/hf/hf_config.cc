#include "fsdp/checkpoint/hf/hf_config.h"

#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <absl/types/span.h>

#include <algorithm>
#include <initializer_list>
#include <iterator>
#include <optional>
#include <set>
#include <utility>

#include "base/spec_text/yaml_tree.h"
#include "fsdp/checkpoint/hf/hf_fields.h"
#include "fsdp/checkpoint/hf/hf_reader.h"

namespace fsdpd {
namespace {

// Names of a family, defaults of its configuration class, and fixed properties of its layers.
struct Family {
  const char* model_type;
  const char* architecture;  // As in `architectures`.
  int64_t kv_heads = 0;      // 0: same as heads.
  int64_t head_dim = 0;      // 0: hidden_size / num_attention_heads.
  bool qk_norm = false;
  bool qkv_bias = false;
  int64_t positions = 2048;
  int64_t window_layers = 0;  // Layers before it have no sliding window.
  double rope_theta = 10000;
  double norm_epsilon = 1e-6;
};

constexpr Family kLlama{"llama", "LlamaForCausalLM"};
constexpr Family kMistral{"mistral", "MistralForCausalLM", 8, 0, false, false, 131072};
constexpr Family kMixtral{"mixtral", "MixtralForCausalLM", 8, 0, false, false, 131072, 0, 1e6, 1e-5};
constexpr Family kQwen2{"qwen2", "Qwen2ForCausalLM", 32, 0, false, true, 32768, 28};
constexpr Family kQwen3{"qwen3", "Qwen3ForCausalLM", 32, 128, true, false, 32768, 28};
constexpr Family kQwen3Moe{"qwen3_moe", "Qwen3MoeForCausalLM", 4, 0, true, false, 32768};
constexpr Family kDots1{"dots1", "Dots1ForCausalLM", 0, 0, true, false, 2048, 62};
constexpr Family kDeepSeekV2{"deepseek_v2", "DeepseekV2ForCausalLM"};
constexpr Family kDeepSeekV3{"deepseek_v3", "DeepseekV3ForCausalLM", 0, 0, false, false, 4096};
constexpr Family kGpt2{"gpt2", "GPT2LMHeadModel"};  // The rest is for Llama's relatives.
constexpr const Family* kFamilies[] = {&kLlama,    &kMistral, &kQwen2,      &kQwen3,      &kMixtral,
                                       &kQwen3Moe, &kDots1,   &kDeepSeekV2, &kDeepSeekV3, &kGpt2};

bool Is(const Family& family, const Family& other) { return family.model_type == other.model_type; }
bool IsDeepSeek(const Family& family) { return Is(family, kDeepSeekV2) || Is(family, kDeepSeekV3); }

// The value of a field that must be one of these; the first is the default.
std::string ReadName(HfReader* in, const char* key, std::initializer_list<absl::string_view> supported,
                     std::string fix) {
  const std::string name = in->Text(in->root(), key, *supported.begin());
  if (std::find(supported.begin(), supported.end(), name) == supported.end()) {
    in->NotSupported(*in->Find(key), absl::StrCat(key, " '", name.substr(0, HfReader::kShown), "'"),
                     std::move(fix));
  }
  return name;
}

// transformers uses mscale and mscale_all_dim together if both are present; otherwise the rotated parts use
// the scale of 1 and 0, and scores use mscale_all_dim only.
void ReadMscale(HfReader* in, const TextNode& rope, v1::Llama::Yarn* yarn) {
  const TextNode* all_dim = in->Present(rope, "mscale_all_dim");
  const TextNode* mscale = in->Present(rope, "mscale");
  const bool none = all_dim == nullptr || all_dim->text == "0" || all_dim->text == "0.0";
  if (none) return yarn->set_mscale(1);
  const double value = in->Number(rope, "mscale_all_dim");
  if (mscale == nullptr) return in->NotSupported(*all_dim, "mscale_all_dim without mscale");
  yarn->set_mscale(in->Number(rope, "mscale"));
  yarn->set_mscale_all_dim(value);
}

void ReadScaling(HfReader* in, const TextNode& rope, bool yarn, v1::Llama::RopeScaling* scaling) {
  const size_t before = in->violations();
  const char* const low = yarn ? "beta_slow" : "low_freq_factor";
  const char* const high = yarn ? "beta_fast" : "high_freq_factor";
  scaling->set_factor(in->Number(rope, "factor"));
  scaling->set_low_freq_factor(in->Number(rope, low, yarn ? 1 : 0));
  scaling->set_high_freq_factor(in->Number(rope, high, yarn ? 32 : 0));
  scaling->set_original_positions(in->Integer(rope, "original_max_position_embeddings"));
  if (yarn) {
    ReadMscale(in, rope, scaling->mutable_yarn());
    if (const TextNode* factor = in->Present(rope, "attention_factor"))
      in->NotSupported(*factor, "attention_factor", "mscale and mscale_all_dim are supported");
    const TextNode* truncate = in->Present(rope, "truncate");
    if (truncate != nullptr && truncate->text != "true")
      in->NotSupported(*truncate, "truncate other than true");
  }
  if (in->violations() != before) return;
  if (scaling->factor() < 1) in->WrongType(rope, *rope.Find("factor"), "is less than 1");
  if (scaling->high_freq_factor() > scaling->low_freq_factor()) return;
  const TextNode* node = rope.Find(high);
  in->WrongType(rope, node == nullptr ? *rope.Find(low) : *node, absl::StrCat("is not above ", low));
}

// rope_theta is a top-level field in most files; newer ones have it in rope_parameters.
void ReadRope(HfReader* in, const Family& family, v1::Llama* llama) {
  llama->set_rope_theta(in->Number(in->root(), "rope_theta", family.rope_theta));
  bool has_theta = in->Present("rope_theta") != nullptr;
  for (const char* group : {"rope_scaling", "rope_parameters"}) {
    const TextNode* rope = in->Present(group);
    if (rope == nullptr) continue;
    if (rope->kind != TextNode::Kind::kMap) {
      in->WrongType(in->root(), *rope, "is not an object");
      continue;
    }
    if (const TextNode* theta = in->Present(*rope, "rope_theta"); theta != nullptr) {
      const double before = llama->rope_theta();
      llama->set_rope_theta(in->Number(*rope, "rope_theta", before));
      if (has_theta && llama->rope_theta() != before) {
        in->AddViolation(theta->key_place, "hf_two_values",
                         absl::StrCat(group, ".rope_theta is ", theta->text.substr(0, HfReader::kShown),
                                      ", but another rope_theta of the file is ", before),
                         "remove the wrong one");
      }
      has_theta = true;
    }
    const std::string type = in->Text(*rope, "rope_type", in->Text(*rope, "type", "default"));
    if (type == "default") continue;
    if (type == "llama3" || type == "yarn") {
      ReadScaling(in, *rope, type == "yarn", llama->mutable_rope_scaling());
    } else {
      in->NotSupported(*rope, absl::StrCat(group, " of type '", type.substr(0, HfReader::kShown), "'"),
                       "only default, llama3 and yarn are supported");
    }
  }
  if (const TextNode* part = in->Present("partial_rotary_factor")) {
    if (in->Number(in->root(), "partial_rotary_factor", 1) != 1)
      in->NotSupported(*part, "partial_rotary_factor");
  }
}

// A window at least as long as the longest sequence has no effect.
void CheckWindowCutsNothing(HfReader* in, const Family& family, int64_t window, const TextNode& said_by) {
  const int64_t positions = in->Integer("max_position_embeddings", family.positions);
  if (window == 0 || positions == 0 || window >= positions) return;
  in->NotSupported(said_by,
                   absl::StrCat("sliding_window ", window, ", less than max_position_embeddings ", positions,
                                " (sliding-window attention)"),
                   "write null if no sequence is longer than the window");
}

// `layer_types` of newer files lists per layer what older files express by rules.
bool CheckLayerTypes(HfReader* in, int64_t layers) {
  const TextNode* types = in->Present("layer_types");
  if (types == nullptr) return false;
  const auto named = static_cast<int64_t>(types->children.size());
  if (layers > 0 && named != layers)
    in->WrongType(in->root(), *types, absl::StrCat("has ", named, " entries for ", layers, " layers"));
  for (const TextNode& type : types->children) {
    if (type.text == "full_attention") continue;
    in->NotSupported(*types, absl::StrCat("layer type '", type.text.substr(0, HfReader::kShown), "'"),
                     "only full_attention is supported");
    break;
  }
  return true;
}

void CheckWindow(HfReader* in, const Family& family, int64_t layers) {
  const bool has_types = CheckLayerTypes(in, layers);
  if (Is(family, kLlama) || IsDeepSeek(family)) return;
  const TextNode* window = in->Find("sliding_window");
  in->Skip({"use_sliding_window", "max_window_layers"});
  if (has_types) return;
  if (window != nullptr && window->kind == TextNode::Kind::kNull) return;
  if (Is(family, kMixtral) && window == nullptr) return;
  const bool has_flag = Is(family, kQwen2) || Is(family, kQwen3) || Is(family, kQwen3Moe);
  if (has_flag && !in->Flag("use_sliding_window")) return;
  if (Is(family, kQwen2) || Is(family, kQwen3) || Is(family, kDots1)) {
    const TextNode* full = in->Present("max_window_layers");
    const bool none_full = full != nullptr && full->text == "0";
    if (!none_full && in->Integer("max_window_layers", family.window_layers) >= layers) return;
  }
  CheckWindowCutsNothing(in, family, in->Integer("sliding_window", 4096),
                         window == nullptr ? in->root() : *window);
}

// Layers without experts: Qwen3-MoE's file lists them, or gives the interval between layers with experts.
void ReadDenseLayers(HfReader* in, int64_t layers, v1::Llama::Experts* experts) {
  if (const TextNode* step = in->Present("decoder_sparse_step");
      step != nullptr && in->Integer("decoder_sparse_step") > 1) {
    in->NotSupported(*step, "decoder_sparse_step above 1 (MoE layers between dense layers)");
  }
  const TextNode* dense = in->Present("mlp_only_layers");
  if (dense == nullptr) return;
  if (dense->kind != TextNode::Kind::kSequence) return in->WrongType(in->root(), *dense, "is not a list");
  std::set<int64_t> named;
  for (const TextNode& layer : dense->children) {
    int64_t number = -1;
    if (!absl::SimpleAtoi(layer.text, &number) || number < 0)
      return in->WrongType(in->root(), *dense, "is not a list of layer numbers");
    if (number < layers) named.insert(number);  // As in transformers, which looks up the layer's own number.
  }
  if (!named.empty() && *named.rbegin() >= static_cast<int64_t>(named.size()))
    return in->NotSupported(*dense, "a list of mlp_only_layers other than the first layers");
  experts->set_dense_layers(static_cast<int64_t>(named.size()));
}

// transformers computes one loss over a batch's tokens of all layers; for identical routers, this is the
// equivalent.
void ReadBalanceLoss(HfReader* in, v1::Llama* llama) {
  in->Skip({"router_aux_loss_coef"});
  if (!in->Flag("output_router_logits")) return;
  const std::optional<double> there = in->Weight("router_aux_loss_coef", 0.001);
  if (!there.has_value() || *there == 0) return;
  v1::Llama::Experts* experts = llama->mutable_experts();
  const int64_t layers = llama->layers() - experts->dense_layers();
  if (layers <= 0) return;
  experts->set_balance_loss(*there * static_cast<double>(experts->per_token()) / static_cast<double>(layers));
  in->Warn(*in->Find("output_router_logits"), "hf_router_loss",
           absl::StrCat("fsdpd computes the router loss per sample and layer, Transformers over the batch "
                        "and all layers; balance_loss ",
                        experts->balance_loss(), " is as strong if all layers route alike"),
           "write false in the file to disable it");
}

bool IsNull(const TextNode* node) { return node != nullptr && node->kind == TextNode::Kind::kNull; }

// The number of leading dense layers, or the family's default.
int64_t DenseLayers(HfReader* in, const Family& family) {
  const TextNode* dense = in->Present("first_k_dense_replace");
  if (dense == nullptr) return Is(family, kDeepSeekV3) ? 3 : 0;
  return dense->text == "0" ? 0 : in->Integer("first_k_dense_replace");
}

// DeepSeek-V3's routing. transformers does not implement its router loss.
void ReadDots1(HfReader* in, const Family& family, v1::Llama::Experts* experts) {
  const bool deepseek = Is(family, kDeepSeekV3);
  experts->set_count(in->Integer("n_routed_experts"));
  experts->set_per_token(in->Integer("num_experts_per_tok"));
  experts->set_intermediate_size(in->Integer("moe_intermediate_size", deepseek ? 2048 : 1408));
  experts->set_shared_intermediate_size(in->Integer("n_shared_experts") * experts->intermediate_size());
  experts->set_normalized(in->Flag("norm_topk_prob", deepseek));
  experts->set_scores(v1::Llama::Experts::SCORES_SIGMOID);
  experts->set_selection_bias(true);
  experts->set_groups(in->Integer("n_group", deepseek ? 8 : 1));
  experts->set_groups_per_token(in->Integer("topk_group", deepseek ? 4 : 1));
  experts->set_weight_scale(in->Number(in->root(), "routed_scaling_factor", deepseek ? 2.5 : 1));
  experts->set_dense_layers(DenseLayers(in, family));
  if (!deepseek) in->Skip({"scoring_func", "topk_method"});  // transformers supports only one of each.
}

// DeepSeek-V2's routing. Its method "greedy" ignores groups, whatever the file contains.
void ReadDeepSeekV2Experts(HfReader* in, v1::Llama::Experts* experts) {
  experts->set_count(in->Integer("n_routed_experts", 64));
  experts->set_per_token(in->Integer("num_experts_per_tok"));
  experts->set_intermediate_size(in->Integer("moe_intermediate_size", 1407));
  experts->set_shared_intermediate_size(in->Integer("n_shared_experts", 2) * experts->intermediate_size());
  experts->set_normalized(false);
  in->Only("norm_topk_prob", false, "normalization of routing weights");
  experts->set_weight_scale(in->Number(in->root(), "routed_scaling_factor", 1));
  experts->set_dense_layers(DenseLayers(in, kDeepSeekV2));
  in->Skip({"n_group", "topk_group"});
  if (ReadName(in, "topk_method", {"greedy", "group_limited_greedy"},
               "only greedy and group_limited_greedy are supported") != "group_limited_greedy")
    return;
  experts->set_groups(in->Integer("n_group"));
  experts->set_groups_per_token(in->Integer("topk_group"));
  experts->set_group_scores(v1::Llama::Experts::GROUP_SCORES_BEST);
}

// Fields of DeepSeek-V2 and V3 other than experts and sizes.
void ReadDeepSeek(HfReader* in, const Family& family, v1::Llama* llama) {
  v1::Llama::LatentAttention* latent = llama->mutable_latent_attention();
  latent->set_rank(in->Integer("kv_lora_rank", 512));
  if (!IsNull(in->Find("q_lora_rank"))) latent->set_query_rank(in->Integer("q_lora_rank", 1536));
  latent->set_plain_head_size(in->Integer("qk_nope_head_dim", 128));
  latent->set_rotary_head_size(in->Integer("qk_rope_head_dim", 64));
  latent->set_value_head_size(in->Integer("v_head_dim", 128));
  latent->set_interleaved(in->Flag("rope_interleave", true) || Is(family, kDeepSeekV2));
  llama->clear_head_size();  // head_dim is that of the rotated part.
  const char* const scores = Is(family, kDeepSeekV2) ? "softmax" : "sigmoid";
  ReadName(in, "scoring_func", {scores}, absl::StrCat("only ", scores, " is"));
  if (Is(family, kDeepSeekV3)) ReadName(in, "topk_method", {"noaux_tc"}, "only noaux_tc is");
  if (Is(family, kDeepSeekV2) && llama->rope_scaling().yarn().mscale_all_dim() > 0) {
    const TextNode* rope = in->Present("rope_scaling");
    in->Warn(rope == nullptr ? *in->Find("rope_parameters") : *rope, "hf_score_scale",
             "attention scores have the square of YaRN's scale, as in DeepSeek's code; Transformers omits it "
             "for DeepSeek-V2",
             "to match Transformers, write all model fields in the spec, with yarn: {mscale: 0, "
             "mscale_all_dim: 0}");
  }
  const TextNode* every = in->Present("moe_layer_freq");
  if (every != nullptr && every->text != "1")
    in->NotSupported(*every, "moe_layer_freq other than 1 (MoE layers between dense layers)");
  const TextNode* more = in->Present("num_nextn_predict_layers");
  if (more == nullptr || more->text == "0") return;
  in->Warn(*more, "hf_more_tokens",
           "multi-token prediction layers are ignored: fsdpd does not train them, and other layers do not "
           "depend on them",
           "set num_nextn_predict_layers: 0 in config.json to remove this warning");
}

// transformers computes no router loss for these families.
void TellDeepSeekLoss(HfReader* in, const Family& family) {
  const TextNode* loss = in->Present("aux_loss_alpha");
  if (!IsDeepSeek(family) || loss == nullptr || in->Weight("aux_loss_alpha", 0).value_or(0) == 0) return;
  in->Warn(*loss, "hf_loss_left_out", "the router loss is ignored, as Transformers does for this family",
           absl::StrCat("to train with it, write all model fields in the spec, with experts: {balance_loss: ",
                        loss->text.substr(0, HfReader::kShown), "}"));
}

void ReadExperts(HfReader* in, const Family& family, v1::Llama* llama) {
  if (IsDeepSeek(family)) {  // These fields have no effect if all layers are dense.
    in->Skip({"first_k_dense_replace", "moe_intermediate_size", "n_group", "n_routed_experts",
              "n_shared_experts", "norm_topk_prob", "num_experts_per_tok", "routed_scaling_factor",
              "topk_group", "topk_method", "aux_loss_alpha"});
  }
  if (Is(family, kDeepSeekV2) && IsNull(in->Find("n_routed_experts"))) return;
  if (IsDeepSeek(family) && llama->layers() > 0 && DenseLayers(in, family) >= llama->layers()) return;
  v1::Llama::Experts* experts = llama->mutable_experts();
  TellDeepSeekLoss(in, family);
  if (Is(family, kDeepSeekV2)) return ReadDeepSeekV2Experts(in, experts);
  if (Is(family, kDots1) || Is(family, kDeepSeekV3)) return ReadDots1(in, family, experts);
  if (Is(family, kMixtral)) {
    experts->set_count(in->Integer("num_local_experts", 8));
    experts->set_per_token(in->Integer("num_experts_per_tok", 2));
    experts->set_normalized(true);
    in->WarnOfNoise("router_jitter_noise", "noise on router inputs");
  } else {
    experts->set_count(in->Integer("num_experts", 128));
    experts->set_per_token(in->Integer("num_experts_per_tok", 8));
    experts->set_intermediate_size(in->Integer("moe_intermediate_size", 768));
    experts->set_normalized(in->Flag("norm_topk_prob"));
    ReadDenseLayers(in, llama->layers(), experts);
  }
  ReadBalanceLoss(in, llama);
}

void ReadLlama(HfReader* in, const Family& family, v1::Llama* llama) {
  llama->set_vocab_size(in->Integer("vocab_size"));
  llama->set_hidden_size(in->Integer("hidden_size"));
  llama->set_intermediate_size(in->Integer("intermediate_size"));
  llama->set_layers(in->Integer("num_hidden_layers"));
  llama->set_heads(in->Integer("num_attention_heads"));
  // Absent means the family's default, null means as many as heads.
  const bool written = in->Find("num_key_value_heads") != nullptr;
  const int64_t kv_heads = written || family.kv_heads == 0 ? llama->heads() : family.kv_heads;
  if (llama->heads() > 0) llama->set_kv_heads(in->Integer("num_key_value_heads", kv_heads));
  if (in->Present("head_dim") != nullptr || family.head_dim > 0) {
    llama->set_head_size(in->Integer("head_dim", family.head_dim));
  } else if (llama->heads() > 0 && llama->hidden_size() % llama->heads() == 0) {
    llama->set_head_size(llama->hidden_size() / llama->heads());  // Otherwise the rules explain why not.
  }
  llama->set_norm_epsilon(in->Number(in->root(), "rms_norm_eps", family.norm_epsilon));
  if (in->Present("max_position_embeddings") != nullptr) {
    llama->set_positions(in->Integer("max_position_embeddings"));
  }
  in->WarnOfDropout({"attention_dropout"}, 0);
  llama->set_tied_embeddings(in->Flag("tie_word_embeddings"));
  llama->set_qk_norm(family.qk_norm);
  llama->set_attention_bias(family.qkv_bias);
  if (family.qk_norm) in->Skip({"qk_norm", "use_qk_norm"});  // Determined by the class; files may repeat it.
  if (family.qkv_bias) in->Skip({"qkv_bias"});
  ReadRope(in, family, llama);
  CheckWindow(in, family, llama->layers());
  // Determined by the class for qwen2 and mixtral. For others the flag adds a bias to the output projection
  // too.
  if (family.qkv_bias || Is(family, kMixtral)) {
    in->Skip({"attention_bias"});
  } else {
    in->Only("attention_bias", false, "bias of the attention output projection");
  }
  in->Only("mlp_bias", false, "bias of the feed-forward layer");
  if (IsDeepSeek(family)) ReadDeepSeek(in, family, llama);
  if (Is(family, kMixtral) || Is(family, kQwen3Moe) || Is(family, kDots1) || IsDeepSeek(family))
    ReadExperts(in, family, llama);
  ReadName(in, "hidden_act", {"silu"}, "only silu is supported");
}

void ReadGpt2(HfReader* in, v1::Gpt2* gpt2) {
  gpt2->set_vocab_size(in->Integer("vocab_size"));
  gpt2->set_hidden_size(in->Integer("n_embd"));
  gpt2->set_layers(in->Integer("n_layer"));
  gpt2->set_heads(in->Integer("n_head"));
  gpt2->set_positions(in->Integer("n_positions"));
  const int64_t four_times = 4 * gpt2->hidden_size();
  if (four_times > 0) gpt2->set_intermediate_size(in->Integer("n_inner", four_times));
  gpt2->set_norm_epsilon(in->Number(in->root(), "layer_norm_epsilon", 1e-5));
  gpt2->set_untied_embeddings(!in->Flag("tie_word_embeddings", true));
  // Two names of one formula.
  ReadName(in, "activation_function", {"gelu_new", "gelu_pytorch_tanh"}, "only gelu_new is supported");
  in->WarnOfDropout({"attn_pdrop", "embd_pdrop", "resid_pdrop"}, 0.1);
  in->Only("scale_attn_weights", true, "disabled scaling of attention scores");
  in->Only("scale_attn_by_inverse_layer_idx", false, "scaling of attention scores by layer number");
  in->Only("add_cross_attention", false, "cross-attention");
}

std::string KnownTypes() {
  return absl::StrCat("supported: ",
                      absl::StrJoin(kFamilies, ", ", [](std::string* out, const Family* family) {
                        absl::StrAppend(out, family->model_type);
                      }));
}

const Family* FindFamily(absl::string_view model_type) {
  const auto* const found = std::find_if(std::begin(kFamilies), std::end(kFamilies),
                                         [&](const Family* each) { return each->model_type == model_type; });
  return found == std::end(kFamilies) ? nullptr : *found;
}

// Null after a violation.
const Family* ReadFamily(HfReader* in) {
  const char* fix = "use the config.json next to the weights";
  if (in->root().kind != TextNode::Kind::kMap) {
    in->AddViolation(in->root().place, "hf_no_config", "is not a config.json", fix);
    return nullptr;
  }
  const TextNode* type = in->Present("model_type");
  if (type == nullptr) {
    in->AddViolation(in->root().place, "hf_no_config", "has no model_type", fix);
    return nullptr;
  }
  const Family* found = FindFamily(type->text);
  if (found == nullptr) {
    in->NotSupported(*type, absl::StrCat("model_type '", type->text.substr(0, HfReader::kShown), "'"),
                     KnownTypes());
    return nullptr;
  }
  const TextNode* names = in->Present("architectures");
  if (names == nullptr) return found;
  if (names->kind != TextNode::Kind::kSequence) {
    in->WrongType(in->root(), *names, "is not a list");
    return nullptr;
  }
  for (const TextNode& name : names->children) {
    if (name.text == found->architecture) return found;
  }
  in->NotSupported(*names, absl::StrCat("a list of architectures without ", found->architecture));
  return nullptr;
}

// Sizes do not show quantization; weights other than bf16, fp16 or fp32 are rejected when loaded.
void TellQuantized(HfReader* in) {
  const TextNode* quantized = in->Present("quantization_config");
  if (quantized == nullptr) return;
  in->Warn(*quantized, "hf_quantized", "the weights next to it are quantized and cannot be loaded",
           "convert them to bf16 first, or start from other weights; precision.compute: fp8 trains in FP8");
}

// A field of model.llama or model.gpt2, and a key for it, of which a file has one.
struct FieldKey {
  const char* field;
  const char* key;
};

constexpr FieldKey kLlamaKeys[] = {
    {"vocab_size", "vocab_size"},
    {"hidden_size", "hidden_size"},
    {"intermediate_size", "intermediate_size"},
    {"layers", "num_hidden_layers"},
    {"heads", "num_attention_heads"},
    {"kv_heads", "num_key_value_heads"},
    {"head_size", "head_dim"},
    {"norm_epsilon", "rms_norm_eps"},
    {"positions", "max_position_embeddings"},
    {"rope_theta", "rope_theta"},
    {"rope_scaling", "rope_scaling"},
    {"rope_scaling", "rope_parameters"},
    {"latent_attention.rank", "kv_lora_rank"},
    {"latent_attention.query_rank", "q_lora_rank"},
    {"latent_attention.plain_head_size", "qk_nope_head_dim"},
    {"latent_attention.rotary_head_size", "qk_rope_head_dim"},
    {"latent_attention.value_head_size", "v_head_dim"},
    {"latent_attention.interleaved", "rope_interleave"},
    {"experts.count", "num_local_experts"},
    {"experts.count", "num_experts"},
    {"experts.count", "n_routed_experts"},
    {"experts.per_token", "num_experts_per_tok"},
    {"experts.intermediate_size", "moe_intermediate_size"},
    {"experts.shared_intermediate_size", "n_shared_experts"},
    {"experts.dense_layers", "first_k_dense_replace"},
    {"experts.dense_layers", "mlp_only_layers"},
    {"experts.groups", "n_group"},
    {"experts.groups_per_token", "topk_group"},
    {"experts.weight_scale", "routed_scaling_factor"},
    {"experts.balance_loss", "router_aux_loss_coef"},
};

constexpr FieldKey kGpt2Keys[] = {
    {"vocab_size", "vocab_size"},
    {"hidden_size", "n_embd"},
    {"layers", "n_layer"},
    {"heads", "n_head"},
    {"positions", "n_positions"},
    {"intermediate_size", "n_inner"},
    {"norm_epsilon", "layer_norm_epsilon"},
};

void AddPlaces(const TextNode& root, const std::string& file, bool gpt2, FieldPlaces* places) {
  const std::string model = gpt2 ? "model.gpt2" : "model.llama";
  (*places)[model] = {file, 1, 1};
  if (const TextNode* deviation = root.Find("initializer_range"); deviation != nullptr) {
    (*places)["train.initial.std"] = deviation->key_place;
    (*places)["train.initial.std"].name = "initializer_range";
  }
  for (const auto& [field, key] : gpt2 ? absl::MakeConstSpan(kGpt2Keys) : absl::MakeConstSpan(kLlamaKeys)) {
    const TextNode* node = root.Find(key);
    if (node == nullptr || node->kind == TextNode::Kind::kNull) continue;
    Place& place = (*places)[absl::StrCat(model, ".", field)] = node->key_place;
    place.name = key;
  }
}

}  // namespace

LocatedViolations ReadHfConfig(absl::string_view text, const std::string& file, v1::Model* model,
                               FieldPlaces* places, double* initializer_range) {
  TextNode root;
  LocatedViolations violations = ParseYaml(text, file, &root);
  for (LocatedViolation& located : violations) located.violation.field = "model.hf_config";
  if (!violations.empty()) return violations;
  HfReader reader(root);
  const Family* family = ReadFamily(&reader);
  if (family == nullptr) return reader.TakeViolations();
  const bool gpt2 = Is(*family, kGpt2);
  gpt2 ? ReadGpt2(&reader, model->mutable_gpt2()) : ReadLlama(&reader, *family, model->mutable_llama());
  TellQuantized(&reader);
  const double deviation = reader.Number(root, "initializer_range", kInitializerRange);
  if (initializer_range != nullptr) *initializer_range = deviation;
  WarnOfUnread(&reader);
  if (places != nullptr) AddPlaces(root, file, gpt2, places);
  return reader.TakeViolations();
}

std::string ArchitectureOf(absl::string_view model_type) {
  const Family* family = FindFamily(model_type);
  return family == nullptr ? "" : family->architecture;
}

}  // namespace fsdpd
