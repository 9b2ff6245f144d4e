#include "fsdp/checkpoint/hf/hf_fields.h"

#include <absl/strings/match.h>
#include <absl/strings/str_join.h>

#include <algorithm>
#include <iterator>
#include <vector>

namespace fsdpd {
namespace {

constexpr absl::string_view kWithoutEffect[] = {
    // clang-format off

    // Tokens and tokenizers: token files already contain ids.
    "add_bos_token", "add_eos_token", "bos_token_id", "cls_token_id", "decoder_start_token_id",
    "eos_token_id", "pad_token_id", "sep_token_id", "tokenizer_class", "unk_token_id",
    // Types of the stored weights and of transformers' arithmetic, versions, and origin.
    "architectures", "auto_map", "dtype", "torch_dtype", "transformers_version", "unsloth_fixed",
    "unsloth_version", "use_bfloat16",
    // How transformers executes the same arithmetic.
    "attn_implementation", "chunk_size_feed_forward", "ep_size", "gradient_checkpointing",
    "pretraining_tp", "reorder_and_upcast_attn", "torchscript", "use_cache", "use_flash_attn",
    "use_flash_attention",
    // Return values of a forward pass.
    "keys_to_ignore_at_inference", "output_past", "output_attentions", "output_hidden_states", "return_dict",
    // Generation.
    "bad_words_ids", "begin_suppress_tokens", "diversity_penalty", "do_sample", "early_stopping",
    "encoder_no_repeat_ngram_size", "exponential_decay_length_penalty", "forced_bos_token_id",
    "forced_eos_token_id", "length_penalty", "max_length", "min_length", "no_repeat_ngram_size",
    "num_beam_groups", "num_beams", "num_return_sequences", "output_scores", "prefix",
    "remove_invalid_values", "repetition_penalty", "return_dict_in_generate", "suppress_tokens",
    "task_specific_params", "temperature", "top_k", "top_p", "typical_p",
    // Other tasks than causal language modeling, and encoders.
    "classifier_dropout", "cross_attention_hidden_size", "finetuning_task", "id2label", "is_decoder",
    "is_encoder_decoder", "label2id", "num_labels", "problem_type", "summary_activation",
    "summary_first_dropout", "summary_proj_to_labels", "summary_type", "summary_use_proj",
    "tf_legacy_loss", "tie_encoder_decoder",
    // Repeats of other fields.
    "n_ctx", "n_special", "predict_special_tokens", "qk_head_dim",
    // DeepSeek's router loss, whose weight hf_loss_left_out reports.
    "seq_aux",
    // clang-format on
};

// Fields that other models, or custom code next to the weights, compute with.
struct Computed {
  absl::string_view key;
  absl::string_view neutral;  // Value without any effect; empty: unknown.
  const char* what;
};

constexpr Computed kComputed[] = {
    {"add_cross_attention", "false", "cross-attention"},
    {"attention_chunk_size", "", "chunked attention"},
    {"attention_factor", "1", "scaling of the rotary embedding"},
    {"attention_multiplier", "", "scaling of attention scores"},
    {"attn_logit_softcapping", "", "soft-capping of attention scores"},
    {"attn_temperature_tuning", "false", "position-dependent scaling of attention scores"},
    {"alibi", "false", "ALiBi"},
    {"bias", "false", "bias of attention and feed-forward layers"},
    {"clip_qkv", "", "clipping of queries, keys and values"},
    {"dim_model_base", "", "scaling of logits"},
    {"embedding_multiplier", "1", "scaling of embeddings"},
    {"embedding_scale", "1", "scaling of embeddings"},
    {"final_logit_softcapping", "", "soft-capping of logits"},
    {"logit_cap", "", "soft-capping of logits"},
    {"logit_scale", "1", "scaling of logits"},
    {"logit_soft_cap", "", "soft-capping of logits"},
    {"logits_scaling", "1", "scaling of logits"},
    {"no_rope_layer_interval", "", "disabled rotary embedding in some layers"},
    {"no_rope_layers", "", "disabled rotary embedding in some layers"},
    {"num_experts", "0", "experts"},
    {"num_local_experts", "0", "experts"},
    {"n_routed_experts", "0", "experts"},
    {"partial_rotary_factor", "1", "partial rotary embedding"},
    {"qk_layernorm", "false", "QK-norm"},
    {"qk_norm", "false", "QK-norm"},
    {"qkv_bias", "false", "bias of queries, keys and values"},
    {"query_pre_attn_scalar", "", "scaling of attention scores"},
    {"residual_multiplier", "1", "scaling of residual branches"},
    {"rotary_pct", "1", "partial rotary embedding"},
    {"scale_depth", "1", "scaling of residual branches"},
    {"scale_emb", "1", "scaling of embeddings"},
    {"shared_expert_intermediate_size", "0", "a shared expert"},
    {"use_bias", "false", "bias of attention and feed-forward layers"},
    {"use_mrope", "false", "multi-dimensional rotary embedding"},
    {"use_parallel_residual", "false", "a parallel attention and feed-forward layer"},
    {"use_qk_norm", "false", "QK-norm"},
};

bool IsWithoutEffect(absl::string_view key) {
  return absl::StartsWith(key, "_") ||
         std::find(std::begin(kWithoutEffect), std::end(kWithoutEffect), key) != std::end(kWithoutEffect);
}

bool IsNeutral(const TextNode& node, absl::string_view neutral) {
  if (node.kind != TextNode::Kind::kScalar) return node.children.empty();
  if (neutral.empty()) return false;
  double value = 0, unchanged = 0;
  return node.text == neutral ||
         (absl::SimpleAtod(node.text, &value) && absl::SimpleAtod(neutral, &unchanged) && value == unchanged);
}

std::string ValueOf(const TextNode& node) {
  return node.kind == TextNode::Kind::kScalar ? absl::StrCat(" ", node.text.substr(0, HfReader::kShown)) : "";
}

void WarnOfUnreadOf(const TextNode& parent, HfReader* in, std::vector<const TextNode*>* unknown) {
  for (const TextNode& node : parent.children) {
    if (in->HasRead(parent, node.key) || IsWithoutEffect(node.key)) continue;
    const auto* computed = std::find_if(std::begin(kComputed), std::end(kComputed),
                                        [&](const Computed& each) { return each.key == node.key; });
    if (computed == std::end(kComputed)) {
      if (node.kind != TextNode::Kind::kNull) unknown->push_back(&node);
    } else if (!IsNeutral(node, computed->neutral)) {
      in->NotSupported(node, absl::StrCat(node.key, ValueOf(node), ": ", computed->what));
    }
  }
}

}  // namespace

void WarnOfUnread(HfReader* in) {
  // Removed attention heads; an empty map removes none.
  const TextNode* pruned = in->Present("pruned_heads");
  if (pruned != nullptr && !pruned->children.empty()) in->NotSupported(*pruned, "pruned_heads");
  std::vector<const TextNode*> unknown;
  WarnOfUnreadOf(in->root(), in, &unknown);
  for (const char* group : {"rope_scaling", "rope_parameters"}) {
    const TextNode* rope = in->Present(group);
    if (rope != nullptr && rope->kind == TextNode::Kind::kMap) WarnOfUnreadOf(*rope, in, &unknown);
  }
  if (unknown.empty() || in->has_errors()) return;  // For a rejected file, errors suffice.
  const std::string names = absl::StrJoin(unknown, ", ", [](std::string* out, const TextNode* node) {
    absl::StrAppend(out, node->key.substr(0, HfReader::kShown));
  });
  in->Warn(*unknown.front(), "hf_not_known",
           absl::StrCat(unknown.size(), unknown.size() == 1 ? " field is" : " fields are",
                        " unknown and ignored: ", names),
           "check whether the model computes with them");
}

}  // namespace fsdpd
