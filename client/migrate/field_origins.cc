#include "client/migrate/field_origins.h"

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_replace.h>

#include <algorithm>

#include "client/migrate/option_names.h"
#include "client/migrate/shell_words.h"

namespace fsdpd {
namespace {

struct FieldOrigin {
  const char* field;
  const char* settings[7];  // The first one that is set is the origin. Null-padded.
};

// The first matching row with a setting wins, so a parent comes after the fields inside it.
constexpr FieldOrigin kOrigins[] = {
    {"model.llama.vocab_size", {"padded_vocab_size", "vocab_size", "tokenizer_vocab_size"}},
    {"model.llama.hidden_size", {"hidden_size"}},
    {"model.llama.layers", {"num_layers"}},
    {"model.llama.heads", {"num_attention_heads"}},
    {"model.llama.intermediate_size", {"ffn_hidden_size", "hidden_size"}},
    {"model.llama.kv_heads", {"num_query_groups", "group_query_attention"}},
    {"model.llama.head_size", {"kv_channels"}},
    {"model.llama.positions", {"max_position_embeddings"}},
    {"model.llama.rope_theta", {"rotary_base"}},
    {"model.llama.norm_epsilon", {"norm_epsilon"}},
    {"model.llama.tied_embeddings", {"share_embeddings_and_output_weights"}},
    {"model.llama.qk_norm", {"qk_norm"}},
    {"model.llama.attention_bias", {"add_qkv_bias"}},
    {"model.llama.rope_scaling.factor", {"rope_scaling_factor", "rotary_scaling_factor", "rope_scaling"}},
    {"model.llama.rope_scaling.low_freq_factor", {"beta_slow"}},
    {"model.llama.rope_scaling.high_freq_factor", {"beta_fast"}},
    {"model.llama.rope_scaling.original_positions", {"original_max_position_embeddings"}},
    {"model.llama.rope_scaling.yarn.mscale", {"mscale"}},
    {"model.llama.rope_scaling.yarn.mscale_all_dim", {"mscale_all_dim"}},
    {"model.llama.rope_scaling", {"rope_scaling", "rotary_scaling_factor"}},
    {"model.llama.latent_attention.rank", {"kv_lora_rank"}},
    {"model.llama.latent_attention.query_rank", {"q_lora_rank"}},
    {"model.llama.latent_attention.plain_head_size", {"qk_head_dim"}},
    {"model.llama.latent_attention.rotary_head_size", {"qk_pos_emb_head_dim"}},
    {"model.llama.latent_attention.value_head_size", {"v_head_dim"}},
    {"model.llama.latent_attention", {"multi_latent_attention"}},
    {"model.llama.experts.count", {"num_experts"}},
    {"model.llama.experts.per_token", {"moe_router_topk"}},
    {"model.llama.experts.intermediate_size", {"moe_ffn_hidden_size"}},
    {"model.llama.experts.shared_intermediate_size", {"moe_shared_expert_intermediate_size"}},
    {"model.llama.experts.dense_layers", {"moe_layer_freq"}},
    {"model.llama.experts.normalized", {"moe_router_pre_softmax"}},
    {"model.llama.experts.scores", {"moe_router_score_function"}},
    {"model.llama.experts.groups", {"moe_router_num_groups"}},
    {"model.llama.experts.groups_per_token", {"moe_router_group_topk"}},
    {"model.llama.experts.group_scores", {"moe_router_group_topk", "moe_router_topk"}},
    {"model.llama.experts.weight_scale", {"moe_router_topk_scaling_factor"}},
    {"model.llama.experts.selection_bias", {"moe_router_enable_expert_bias"}},
    {"model.llama.experts.bias_update_rate", {"moe_router_bias_update_rate"}},
    {"model.llama.experts.balance_loss", {"moe_aux_loss_coeff"}},
    {"model.llama.experts.z_loss", {"moe_z_loss_coeff"}},
    {"model.llama.experts", {"num_experts"}},
    {"model.gpt2.vocab_size", {"padded_vocab_size", "vocab_size", "tokenizer_vocab_size"}},
    {"model.gpt2.hidden_size", {"hidden_size"}},
    {"model.gpt2.layers", {"num_layers"}},
    {"model.gpt2.heads", {"num_attention_heads"}},
    {"model.gpt2.positions", {"max_position_embeddings"}},
    {"model.gpt2.intermediate_size", {"ffn_hidden_size"}},
    {"model.gpt2.norm_epsilon", {"norm_epsilon"}},
    {"model.gpt2.untied_embeddings", {"share_embeddings_and_output_weights"}},
    {"data.tokens", {"train_data_path", "data_path"}},
    {"data.synthetic", {"mock_data"}},
    {"data.sequence_length", {"seq_length"}},
    {"data.document_end_token", {"null_tokenizer_eod_id", "reset_attention_mask"}},
    {"data.validation", {"valid_data_path"}},
    {"train.steps", {"train_iters", "train_samples"}},
    {"train.micro_batch", {"micro_batch_size"}},
    {"train.global_batch", {"global_batch_size", "micro_batch_size"}},
    {"train.seed", {"seed"}},
    {"train.deterministic", {"deterministic_mode"}},
    {"train.evaluation.every_steps", {"eval_interval"}},
    {"train.evaluation.samples", {"eval_iters"}},
    {"train.initial.std", {"init_method_std"}},
    {"train.initial.embedding_std", {"embedding_init_method_std"}},
    {"train.initial.scale_outputs", {"init_method_std"}},
    {"optimizer.adamw.lr", {"lr"}},
    {"optimizer.adamw.betas[0]", {"adam_beta1"}},
    {"optimizer.adamw.betas[1]", {"adam_beta2"}},
    {"optimizer.adamw.eps", {"adam_eps"}},
    {"optimizer.adamw.weight_decay", {"end_weight_decay", "weight_decay"}},
    {"optimizer.sgd.lr", {"lr"}},
    {"optimizer.sgd.momentum", {"sgd_momentum"}},
    {"optimizer.sgd.weight_decay", {"end_weight_decay", "weight_decay"}},
    {"optimizer.clip_norm", {"clip_grad"}},
    {"optimizer.groups", {"decoupled_lr", "embedding_init_method_std"}},
    {"schedule.constant.warmup_steps", {"lr_warmup_fraction", "lr_warmup_iters", "lr_warmup_samples"}},
    {"schedule.linear.warmup_steps", {"lr_warmup_fraction", "lr_warmup_iters", "lr_warmup_samples"}},
    {"schedule.cosine.warmup_steps", {"lr_warmup_fraction", "lr_warmup_iters", "lr_warmup_samples"}},
    {"schedule.wsd.warmup_steps", {"lr_warmup_fraction", "lr_warmup_iters", "lr_warmup_samples"}},
    {"schedule.linear.min_lr_ratio", {"min_lr"}},
    {"schedule.cosine.min_lr_ratio", {"min_lr"}},
    {"schedule.wsd.min_lr_ratio", {"min_lr"}},
    {"schedule.wsd.decay_steps", {"wsd_decay_iters", "lr_wsd_decay_samples"}},
    {"precision.compute", {"mixed_precision", "fp8_format", "fp8", "fp8_e4m3", "fp8_hybrid", "bf16", "fp16"}},
    {"precision.fp8.keep_bf16", {"first_last_layers_bf16"}},
    {"precision.fp8", {"first_last_layers_bf16"}},
    {"precision.main_params", {"megatron_fsdp_main_params_dtype", "main_params_dtype"}},
    {"precision.main_grads",
     {"megatron_fsdp_main_grads_dtype", "grad_reduce_in_bf16", "main_grads_dtype", "grad_reduce_in_fp32",
      "accumulate_allreduce_grads_in_fp32", "bf16"}},
    {"precision.grad_comm",
     {"megatron_fsdp_grad_comm_dtype", "megatron_fsdp_main_grads_dtype", "grad_reduce_in_bf16",
      "main_grads_dtype", "grad_reduce_in_fp32", "bf16"}},
    {"precision.moments", {"exp_avg_dtype"}},
    {"precision.loss_scale.initial", {"initial_loss_scale"}},
    {"precision.loss_scale.growth_interval", {"loss_scale_window"}},
    {"fsdp.strategy", {"data_parallel_sharding_strategy", "use_megatron_fsdp"}},
    {"fsdp.prefetch_bytes", {"suggested_communication_unit_size"}},
    {"fsdp.recompute", {"recompute_granularity", "recompute_activations"}},
    {"fsdp.recompute_layers", {"recompute_num_layers"}},
    {"fsdp.offload.optimizer", {"optimizer_cpu_offload"}},
    {"fsdp.offload.activation_layers", {"cpu_offloading_num_layers", "cpu_offloading"}},
    {"fsdp.outer.size", {"num_distributed_optimizer_instances"}},
    {"fsdp.outer.strategy", {"outer_dp_sharding_strategy"}},
    {"parallel.tensor", {"tensor_model_parallel_size"}},
    {"parallel.context", {"context_parallel_size"}},
    {"parallel.expert", {"expert_model_parallel_size"}},
    {"parallel.pipeline", {"pipeline_model_parallel_size"}},
    {"checkpoint.dir", {"save"}},
    {"checkpoint.every_steps", {"save_interval"}},
    {"checkpoint.load", {"load", "pretrained_checkpoint"}},
    {"checkpoint.load_optimizer", {"load_optim", "pretrained_checkpoint"}},
    {"resources.nodes", {"nnodes"}},
    {"resources.ranks_per_node", {"nproc_per_node"}},
};

bool ComesFrom(const FieldOrigin& origin, absl::string_view name) {
  return std::any_of(std::begin(origin.settings), std::end(origin.settings),
                     [&](const char* each) { return each != nullptr && name == each; });
}

// "data.tokens[0].path" is within "data.tokens".
bool IsWithin(const std::string& field, absl::string_view parent) {
  return absl::StartsWith(field, parent) &&
         (field.size() == parent.size() || field[parent.size()] == '.' || field[parent.size()] == '[');
}

// True for rules whose violation leaves the field unset. The field's own rules would report it again.
bool LeavesFieldUnset(const std::string& rule) {
  for (const char* each :
       {"required", "lr_positive", "no_value", "not_a_number", "not_a_whole_number", kShellVariable}) {
    if (rule == each) return true;
  }
  return false;
}

}  // namespace

const Setting* OriginOf(const std::string& field, Settings* settings) {
  const auto written = [&](const auto& matches) -> const Setting* {
    for (const FieldOrigin& origin : kOrigins) {
      if (!matches(origin.field)) continue;
      for (const char* name : origin.settings) {
        const Setting* setting = name == nullptr ? nullptr : settings->Find(name);
        if (setting != nullptr) return setting;
      }
    }
    return nullptr;
  };
  const Setting* setting = written([&](const char* origin) { return IsWithin(field, origin); });
  if (setting != nullptr) return setting;
  return written([&](const char* origin) { return IsWithin(origin, field); });
}

LocatedViolation AtOrigin(const Violation& violation, const std::string& file, Settings* settings) {
  LocatedViolation located{{file, 0, 0}, violation};
  const Setting* setting = OriginOf(violation.field, settings);
  if (setting == nullptr) return located;
  located.place = setting->place;
  located.violation.field = setting->written;
  located.violation.reason = absl::StrCat("becomes ", violation.field, ": ", violation.reason);
  return located;
}

std::vector<std::string> UnreadFields(const LocatedViolations& violations) {
  std::vector<std::string> unread;
  for (const LocatedViolation& located : violations) {
    if (!LeavesFieldUnset(located.violation.rule)) continue;
    std::string name = absl::StrReplaceAll(located.violation.field, {{"--", ""}, {"-", "_"}});
    name = NameOfFlag(name.substr(name.rfind('.') + 1)).name;
    for (const FieldOrigin& origin : kOrigins) {
      if (ComesFrom(origin, name)) unread.push_back(origin.field);
    }
  }
  return unread;
}

std::vector<std::string> FieldsWithOrigin() {
  std::vector<std::string> fields;
  for (const FieldOrigin& origin : kOrigins) fields.push_back(origin.field);
  return fields;
}

}  // namespace fsdpd
