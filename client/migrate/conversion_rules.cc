#include "client/migrate/conversion_rules.h"

#include <algorithm>

namespace fsdpd {
namespace {

constexpr ViolationLevel kError = ViolationLevel::kError;
constexpr ViolationLevel kAdjust = ViolationLevel::kAdjust;
constexpr ViolationLevel kWarn = ViolationLevel::kWarn;

struct Row {
  const char* id;
  ViolationLevel level;
  const char* text;
};
constexpr Row kRows[] = {
    {"not_of_megatron", kError, "the file is a configuration of Megatron-LM or Megatron Bridge"},
    {"no_settings", kError, "the file has settings: it is a run_config.yaml or a list of arguments"},
    {"open_quote", kError, "a quote that is opened is closed"},
    {"shell_variable", kError, "the values of settings are written out: shell variables are not expanded"},
    {"not_true_or_false", kError, "a flag is true or false"},
    {"not_a_number", kError, "a setting that needs a number has one"},
    {"not_a_whole_number", kError, "a setting that needs a whole number has one"},
    {"required", kError, "settings that the job needs, and that have no default, are set"},
    {"written_twice", kAdjust, "an argument is written once: the last value counts"},
    {"branches_read", kWarn, "no `else` or `case` of the script sets arguments"},
    {"script", kError, "the script is pretrain_gpt.py"},
    {"torchrun_count", kAdjust,
     "torchrun's numbers of nodes and ranks are plain numbers, equal to those of migrate's command line"},
    {"without_effect", kWarn, "no setting without effect on the result is dropped"},
    {"environment", kWarn, "no environment variable is dropped: ranks have the environment of their agent"},
    {"of_launcher", kWarn, "no option of the launcher is dropped: agents start the ranks"},
    {"not_known", kWarn, "every setting is known; unknown ones are dropped"},
    {"not_supported", kError,
     "no setting changes the model, the data or the numbers in a way that is not supported"},
    {"relative_path", kAdjust, "paths are absolute: relative ones are resolved against one directory"},
    {"strategy_chosen", kAdjust,
     "a sharding strategy of Megatron-FSDP is set: without one the job is sharded to use the least memory"},
    {"optimizer_offload_range", kError, "optimizer_offload_fraction is between 0 and 1"},
    {"optimizer_offload_whole", kAdjust, "the optimizer's state is offloaded as a whole or not at all"},
    {"cpu_offload_half", kAdjust, "cpu_offloading and cpu_offloading_num_layers are set together"},
    {"recompute_known", kError, "recompute_granularity and recompute_method have values of Megatron"},
    {"pretrained_and_load", kWarn, "load and pretrained_checkpoint are not set together: load is used"},
    {"model_family", kError, "the model is of the Llama or the GPT-2 family"},
    {"linear_biases", kError, "linear layers of the Llama family have no biases"},
    {"rotary_percent", kError, "rotary_percent is 1"},
    {"latent_norms", kError, "multi-latent attention has qk_layernorm"},
    {"latent_norm_epsilon", kAdjust, "norms of latents have a fixed epsilon"},
    {"query_groups", kAdjust, "num_query_groups is set with group_query_attention"},
    {"activation", kError, "the activation function is that of the model's family"},
    {"gelu", kAdjust, "gelu is the tanh approximation"},
    {"norms_about_one", kAdjust, "norm weights are not stored minus 1"},
    {"dropout", kWarn, "dropout is 0: dropout is not supported"},
    {"expert_layers", kError,
     "layers without experts come first, and moe_layer_freq has an entry for each layer"},
    {"expert_scores", kError, "router scores are softmax or sigmoid"},
    {"expert_groups", kError,
     "expert groups divide the experts, and are chosen as the router's scores allow"},
    {"expert_balance", kError, "one supported kind of loss balances the experts"},
    {"expert_balance_by_sample", kAdjust, "experts are balanced within each sample"},
    {"expert_balance_of_choices", kAdjust, "the balancing loss counts the experts that the router chooses"},
    {"router_in_fp32", kAdjust, "router logits are computed in fp32"},
    {"router_chooses", kAdjust, "forced load balancing is off: the router chooses the experts"},
    {"type_known", kError, "dtypes are fp32 or bf16; moments may be fp8"},
    {"main_grads_agree", kError, "accumulate_allreduce_grads_in_fp32 and main_grads_dtype agree"},
    {"grad_reduce_in_bf16_wins", kAdjust,
     "grad_reduce_in_bf16 and accumulate_allreduce_grads_in_fp32 are not set together: the former counts"},
    {"gradient_types", kWarn,
     "Megatron's versions accumulate and reduce gradients in the dtypes of the spec"},
    {"fp16_gradients", kAdjust, "gradients are not accumulated or reduced in fp16: fp32 is used"},
    {"moments_differ", kError, "both moments have one dtype"},
    {"fp8_moments", kAdjust, "fp8 moments are rounded without a scale"},
    {"recipe_known", kError, "mixed_precision is a known recipe of Megatron Bridge"},
    {"fp8_known", kError, "FP8 formats and recipes are known ones"},
    {"fp8_with_fp16", kError, "FP8 is used with bf16, not with fp16"},
    {"fp8_recipe", kAdjust, "FP8 is e4m3 with one scale per row"},
    {"fp8_attention", kAdjust, "attention is computed in bf16"},
    {"fp8_matrix_gradients", kAdjust, "with FP8, weight gradients are computed in FP8 too"},
    {"bf16_ends_range", kError, "numbers of layers that stay in bf16 are not negative"},
    {"loss_scale_hysteresis", kAdjust, "hysteresis is 1: every overflow halves the loss scale"},
    {"no_data", kWarn, "data_path is set: without it, random tokens are used"},
    {"data_order", kError, "dataloader_type is single"},
    {"split", kAdjust, "validation data needs separate files: split is not applied"},
    {"documents_apart", kError,
     "positions, attention and loss are all reset at document ends, or none of them"},
    {"documents_first_token", kAdjust, "the first token of a document is not a target"},
    {"document_end", kError, "the token that ends documents is set"},
    {"data_weights", kAdjust, "data files have weights: without them all files have equal weights"},
    {"no_evaluation", kAdjust, "eval_interval is set only with validation data"},
    {"lr_positive", kError, "the learning rate is positive"},
    {"weight_decay_grows", kError, "weight decay is constant"},
    {"embedding_decay", kAdjust,
     "with embedding_init_method_std, embeddings become a parameter group without weight decay"},
    {"own_rate", kAdjust, "decoupled_lr becomes a parameter group with lr_scale"},
    {"own_least_rate", kAdjust, "the learning rate of all groups decays to the same fraction of its peak"},
    {"warmup_from", kAdjust, "a warm-up starts from 0"},
    {"wsd_decay_style", kAdjust, "WSD decays linearly"},
    {"one_step_on", kWarn, "steps have the learning rates of Megatron's steps, which count from 0"},
    {"schedule", kError, "lr_decay_style is constant, linear, cosine or WSD"},
    {"decay_length", kAdjust, "the learning rate decays over all of the job's steps"},
    {"samples_are_steps", kAdjust, "lengths that are counted in samples become whole steps"},
};

}  // namespace

const std::vector<MigrateRule>& ConversionRules() {
  static const auto* const rules = [] {
    auto* made = new std::vector<MigrateRule>;
    for (const Row& row : kRows) made->push_back({row.id, row.level, row.text});
    return made;
  }();
  return *rules;
}

bool IsConversionRule(const std::string& id, ViolationLevel level) {
  const std::vector<MigrateRule>& rules = ConversionRules();
  return std::any_of(rules.begin(), rules.end(),
                     [&](const MigrateRule& rule) { return rule.id == id && rule.level == level; });
}

}  // namespace fsdpd
