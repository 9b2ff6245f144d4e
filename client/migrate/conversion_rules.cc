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
    {"not_of_megatron", kError, "the file must be a configuration of Megatron-LM or Megatron Bridge"},
    {"no_settings", kError, "the file must have settings: it is a run_config.yaml or a list of arguments"},
    {"open_quote", kError, "every quote must be closed"},
    {"shell_variable", kError, "values of settings must be written out: shell variables are not expanded"},
    {"not_true_or_false", kError, "a flag must be true or false"},
    {"not_a_number", kError, "a setting that needs a number must have one"},
    {"not_a_whole_number", kError, "a setting that needs a whole number must have one"},
    {"required", kError, "settings that the job needs, and that have no default, must be set"},
    {"written_twice", kAdjust, "of an argument that is written several times, the last value is used"},
    {"branches_read", kWarn, "settings of all branches of a script are read, and the last value is used"},
    {"script", kError, "the script must be pretrain_gpt.py"},
    {"torchrun_count", kAdjust,
     "torchrun's numbers of nodes and ranks are replaced unless they are plain numbers, equal to those of "
     "migrate's command line"},
    {"without_effect", kWarn, "settings that do not affect the result are dropped"},
    {"environment", kWarn, "environment variables are dropped: ranks have the environment of their agent"},
    {"of_launcher", kWarn, "options of the launcher are dropped: agents start the ranks"},
    {"not_known", kWarn, "unknown settings are dropped"},
    {"not_supported", kError, "settings that change the model, the data or the numbers must be supported"},
    {"relative_path", kAdjust, "relative paths are resolved against one directory"},
    {"strategy_chosen", kAdjust,
     "without a sharding strategy of Megatron-FSDP, the job is sharded to use the least memory"},
    {"optimizer_offload_range", kError, "optimizer_offload_fraction must be between 0 and 1"},
    {"optimizer_offload_whole", kAdjust, "the optimizer's state is offloaded as a whole or not at all"},
    {"cpu_offload_half", kAdjust,
     "cpu_offloading and cpu_offloading_num_layers have no effect without each other"},
    {"recompute_known", kError, "recompute_granularity and recompute_method must have values of Megatron"},
    {"pretrained_and_load", kWarn, "of load and pretrained_checkpoint, load is used"},
    {"model_family", kError, "the model must be of the Llama or the GPT-2 family"},
    {"linear_biases", kError, "linear layers of the Llama family must not have biases"},
    {"rotary_percent", kError, "rotary_percent must be 1"},
    {"latent_norms", kError, "multi-latent attention requires qk_layernorm"},
    {"latent_norm_epsilon", kAdjust, "norms of latents have a fixed epsilon"},
    {"query_groups", kAdjust, "num_query_groups has no effect without group_query_attention"},
    {"activation", kError, "the activation function must be that of the model's family"},
    {"gelu", kAdjust, "gelu becomes the tanh approximation"},
    {"norms_about_one", kAdjust, "norm weights are stored as they are, not minus 1"},
    {"dropout", kWarn, "dropout becomes 0: it is not supported"},
    {"expert_layers", kError,
     "layers without experts must come first, and moe_layer_freq must have an entry for each layer"},
    {"expert_scores", kError, "router scores must be softmax or sigmoid"},
    {"expert_groups", kError,
     "expert groups must divide the experts, and be chosen as the router's scores allow"},
    {"expert_balance", kError, "experts must be balanced by one supported kind of loss"},
    {"expert_balance_by_sample", kAdjust, "experts are balanced within each sample"},
    {"expert_balance_of_choices", kAdjust, "the balancing loss counts the experts that the router chooses"},
    {"router_in_fp32", kAdjust, "router logits are always computed in fp32"},
    {"router_chooses", kAdjust, "forced load balancing is turned off: the router chooses the experts"},
    {"type_known", kError, "dtypes must be fp32 or bf16; moments may be fp8"},
    {"main_grads_agree", kError, "accumulate_allreduce_grads_in_fp32 and main_grads_dtype must agree"},
    {"grad_reduce_in_bf16_wins", kAdjust,
     "of grad_reduce_in_bf16 and accumulate_allreduce_grads_in_fp32, the former is used"},
    {"gradient_types", kWarn,
     "a version of Megatron accumulates or reduces gradients in other dtypes than the spec"},
    {"fp16_gradients", kAdjust, "gradients are accumulated and reduced in fp32 instead of fp16"},
    {"moments_differ", kError, "both moments must have the same dtype"},
    {"fp8_moments", kAdjust, "fp8 moments are rounded without a scale"},
    {"recipe_known", kError, "mixed_precision must be a known recipe of Megatron Bridge"},
    {"fp8_known", kError, "FP8 formats and recipes must be known"},
    {"fp8_with_fp16", kError, "FP8 is not supported with fp16"},
    {"fp8_recipe", kAdjust, "FP8 becomes e4m3 with one scale per row"},
    {"fp8_attention", kAdjust, "attention is computed in bf16"},
    {"fp8_matrix_gradients", kAdjust, "with FP8, weight gradients are computed in FP8 too"},
    {"bf16_ends_range", kError, "numbers of layers that stay in bf16 must not be negative"},
    {"loss_scale_hysteresis", kAdjust, "hysteresis becomes 1: every overflow halves the loss scale"},
    {"no_data", kWarn, "without data_path, random tokens are used"},
    {"data_order", kError, "dataloader_type must be single"},
    {"split", kAdjust, "validation data needs separate files: split is not applied"},
    {"documents_apart", kError,
     "positions, attention and loss must all be reset at document ends, or none of them"},
    {"documents_first_token", kAdjust, "the first token of a document is not a target"},
    {"document_end", kError, "the token that ends documents must be set"},
    {"data_weights", kAdjust, "data files without weights get equal weights"},
    {"no_evaluation", kAdjust, "eval_interval has no effect without validation data"},
    {"lr_positive", kError, "the learning rate must be positive"},
    {"weight_decay_grows", kError, "weight decay must be constant"},
    {"embedding_decay", kAdjust,
     "with embedding_init_method_std, embeddings become a parameter group without weight decay"},
    {"own_rate", kAdjust, "decoupled_lr becomes a parameter group with lr_scale"},
    {"own_least_rate", kAdjust, "the learning rate of all groups decays to the same fraction of its peak"},
    {"warmup_from", kAdjust, "a warm-up always starts from 0"},
    {"wsd_decay_style", kAdjust, "WSD always decays linearly"},
    {"one_step_on", kWarn, "steps have the learning rates of Megatron's steps, which count from 0"},
    {"schedule", kError, "lr_decay_style must be constant, linear, cosine or WSD"},
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
