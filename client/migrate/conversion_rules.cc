#include "client/migrate/conversion_rules.h"

#include <absl/strings/str_replace.h>

#include "base/check.h"

namespace fsdpd {
namespace {

constexpr ViolationLevel kError = ViolationLevel::kError;
constexpr ViolationLevel kAdjust = ViolationLevel::kAdjust;
constexpr ViolationLevel kWarn = ViolationLevel::kWarn;

struct Row {
  const char* id;
  ViolationLevel level;
  const char* text;
  const char* reason = "$0";
  const char* fix = "";
};
constexpr Row kRows[] = {
    {"not_of_megatron", kError, "the file must be a configuration of Megatron-LM or Megatron Bridge",
     "not a Megatron configuration (got $0)", "$1"},
    {"no_settings", kError, "the file must have settings: it is a run_config.yaml or a list of arguments",
     "the text is neither a run_config.yaml nor a list of arguments such as --num-layers 32",
     "pass the file that Megatron Bridge wrote, or the arguments of the pretraining script"},
    {"open_quote", kError, "every quote must be closed", "the quote that starts here is not closed",
     "close it"},
    {"shell_variable", kError, "values of settings must be written out: shell variables are not expanded",
     "$0", "write the value here, or paste the arguments as printed by `echo`"},
    {"not_true_or_false", kError, "a flag must be true or false", "'$0' is not true or false",
     "write true or false"},
    {"not_a_number", kError, "a setting that needs a number must have one", "'$0' is not a number",
     "write a number"},
    {"not_a_whole_number", kError, "a setting that needs a whole number must have one",
     "$0 is not a whole number", "write a whole number"},
    {"required", kError, "settings that the job needs, and that have no default, must be set", "$0", "$1"},
    {"written_twice", kAdjust, "of an argument that is written several times, the last value is used",
     "the last value counts, as in Megatron-LM"},
    {"branches_read", kWarn, "settings of all branches of a script are read, and the last value is used",
     "settings of all branches are read, and the last value counts",
     "paste only the arguments, as printed by `echo`"},
    {"script", kError, "the script must be pretrain_gpt.py",
     "$0 trains a different kind of model than pretrain_gpt.py",
     "only decoders of the Llama and GPT-2 families are supported"},
    {"torchrun_count", kAdjust,
     "torchrun's numbers of nodes and ranks are replaced unless they are plain numbers, equal to those of "
     "migrate's command line"},
    {"without_effect", kWarn, "settings that do not affect the result are dropped",
     "$0 without effect on the result, and dropped: $1"},
    {"environment", kWarn, "environment variables are dropped: ranks have the environment of their agent",
     "$0 environment variables, to be set for the agents instead: $1"},
    {"of_launcher", kWarn, "options of the launcher are dropped: agents start the ranks",
     "$0 of the launcher, which the agents replace: $1"},
    {"not_known", kWarn, "unknown settings are dropped",
     "$0 unknown, and dropped; check whether they change the result: $1"},
    {"not_supported", kError, "settings that change the model, the data or the numbers must be supported",
     "$0", "leave it out if it is not needed"},
    {"relative_path", kAdjust, "relative paths are resolved against one directory",
     "relative paths are taken from $0"},
    {"strategy_chosen", kAdjust,
     "without a sharding strategy of Megatron-FSDP, the job is sharded to use the least memory",
     "$0; full sharding gives the same result with less memory"},
    {"optimizer_offload_range", kError, "optimizer_offload_fraction must be between 0 and 1",
     "$0 is not between 0 and 1", "write 1 for all, or leave it out"},
    {"optimizer_offload_whole", kAdjust, "the optimizer's state is offloaded as a whole or not at all",
     "the optimizer state is offloaded completely or not at all"},
    {"cpu_offload_half", kAdjust,
     "cpu_offloading and cpu_offloading_num_layers have no effect without each other",
     "no layer is offloaded without $0"},
    {"recompute_known", kError, "recompute_granularity and recompute_method must have values of Megatron",
     "$0", "$1"},
    {"pretrained_and_load", kWarn, "of load and pretrained_checkpoint, load is used",
     "load is used; Megatron starts from pretrained_checkpoint while load has no checkpoint",
     "write checkpoint.load: the one to start from"},
    {"model_family", kError, "the model must be of the Llama or the GPT-2 family", "$0", "$1"},
    {"linear_biases", kError, "linear layers of the Llama family must not have biases",
     "biases in linear layers are not supported in the Llama family",
     "add --disable-bias-linear (add_bias_linear: false)"},
    {"rotary_percent", kError, "rotary_percent must be 1", "partial rotary embeddings are not supported",
     "only rotary_percent 1 is supported"},
    {"latent_norms", kError, "multi-latent attention requires qk_layernorm",
     "latent attention without norms of latents is not supported", "add --qk-layernorm (qk_layernorm: true)"},
    {"latent_norm_epsilon", kAdjust, "norms of latents have a fixed epsilon",
     "norms of latents have DeepSeek's epsilon"},
    {"query_groups", kAdjust, "num_query_groups has no effect without group_query_attention",
     "Megatron ignores it without --group-query-attention"},
    {"activation", kError, "the activation function must be that of the model's family",
     "'$0' is not supported", "the $1 family has $2"},
    {"gelu", kAdjust, "gelu becomes the tanh approximation", "only the tanh approximation is supported"},
    {"norms_about_one", kAdjust, "norm weights are stored as they are, not minus 1",
     "norm weights are not stored minus 1, which is equal up to rounding"},
    {"dropout", kWarn, "dropout becomes 0: it is not supported", "dropout is not supported (got $0)",
     "set it to 0.0 to confirm"},
    {"expert_layers", kError,
     "layers without experts must come first, and moe_layer_freq must have an entry for each layer",
     "layers without experts must be the first of the $0 layers",
     "write 1, or a list with one entry per layer such as [0]*3+[1]*58"},
    {"expert_scores", kError, "router scores must be softmax or sigmoid", "'$0' is not supported",
     "write softmax or sigmoid"},
    {"expert_groups", kError,
     "expert groups must divide the experts, and be chosen as the router's scores allow", "$0", "$1"},
    {"expert_balance", kError, "experts must be balanced by one supported kind of loss", "$0", "$1"},
    {"expert_balance_by_sample", kAdjust, "experts are balanced within each sample",
     "experts are balanced within each sample, which is stricter"},
    {"expert_balance_of_choices", kAdjust, "the balancing loss counts the experts that the router chooses",
     "the balancing loss counts the chosen experts, not those with the highest scores"},
    {"router_in_fp32", kAdjust, "router logits are always computed in fp32",
     "router logits are computed in fp32"},
    {"router_chooses", kAdjust, "forced load balancing is turned off: the router chooses the experts",
     "forced load balancing is only for benchmarks"},
    {"type_known", kError, "dtypes must be fp32 or bf16; moments may be fp8", "'$0' is not supported",
     "write fp32 or bf16$1"},
    {"main_grads_agree", kError, "accumulate_allreduce_grads_in_fp32 and main_grads_dtype must agree",
     "accumulate_allreduce_grads_in_fp32 requires main_grads_dtype fp32", "leave one of the two out"},
    {"grad_reduce_in_bf16_wins", kAdjust,
     "of grad_reduce_in_bf16 and accumulate_allreduce_grads_in_fp32, the former is used",
     "grad_reduce_in_bf16 turns it off, as in Megatron-LM"},
    {"gradient_types", kWarn,
     "a version of Megatron accumulates or reduces gradients in other dtypes than the spec",
     "gradients will be accumulated in $0 and reduced in $1; $2",
     "set precision.main_grads and precision.grad_comm if others are intended"},
    {"fp16_gradients", kAdjust, "gradients are accumulated and reduced in fp32 instead of fp16",
     "gradients are accumulated $0in fp32"},
    {"moments_differ", kError, "both moments must have the same dtype",
     "different dtypes of the moments are not supported",
     "write the same for exp_avg_dtype and exp_avg_sq_dtype"},
    {"fp8_moments", kAdjust, "fp8 moments are rounded without a scale",
     "FP8 moments are rounded without a scale and without bias"},
    {"recipe_known", kError, "mixed_precision must be a known recipe of Megatron Bridge",
     "unknown recipe '$0'", "write one of $1"},
    {"fp8_known", kError, "FP8 formats and recipes must be known", "$0", "$1"},
    {"fp8_with_fp16", kError, "FP8 is not supported with fp16", "FP8 is not supported with fp16",
     "write bf16 in place of fp16, or leave FP8 out"},
    {"fp8_recipe", kAdjust, "FP8 becomes e4m3 with one scale per row",
     "linear layers use e4m3 with one scale per row, also for gradients; attention, embedding and head use "
     "higher precision"},
    {"fp8_attention", kAdjust, "attention is computed in bf16", "attention is computed in bf16"},
    {"fp8_matrix_gradients", kAdjust, "with FP8, weight gradients are computed in FP8 too",
     "matrices' gradients are products in FP8 too"},
    {"bf16_ends_range", kError, "numbers of layers that stay in bf16 must not be negative",
     "the number of layers is $0", "write 0 or more"},
    {"loss_scale_hysteresis", kAdjust, "hysteresis becomes 1: every overflow halves the loss scale",
     "every overflow halves the loss scale"},
    {"no_data", kWarn, "without data_path, random tokens are used", "$0: random tokens are used",
     "set data.tokens in the spec"},
    {"data_order", kError, "dataloader_type must be single",
     "only `single` is supported: each sample once per epoch", "write single"},
    {"split", kAdjust, "validation data needs separate files: split is not applied",
     "complete files are training data; split off validation files and set data.validation"},
    {"documents_apart", kError,
     "positions, attention and loss must all be reset at document ends, or none of them",
     "positions, attention and loss are reset at document ends together or not at all",
     "set reset_position_ids, reset_attention_mask and eod_mask_loss, or none of them"},
    {"documents_first_token", kAdjust, "the first token of a document is not a target",
     "the first token of a document is not a target"},
    {"document_end", kError, "the token that ends documents must be set",
     "the end-of-document token is not set: Megatron takes it from the tokenizer, which migrate does not "
     "read",
     "add --null-tokenizer-eod-id N"},
    {"data_weights", kAdjust, "data files without weights get equal weights",
     "files without weights have equal weights; Megatron weights them by length"},
    {"adapter_module", kError,
     "modules with adapters must be linear layers of attention and feed-forward layers",
     "$0 is not supported", "write linear_qkv, linear_proj, linear_fc1 or linear_fc2"},
    {"adapter_initial", kAdjust, "adapters are initialized as in PEFT",
     "A is initialized like a linear layer of PyTorch (Kaiming uniform)"},
    {"no_evaluation", kAdjust, "eval_interval has no effect without validation data",
     "no validation files are set"},
    {"lr_positive", kError, "the learning rate must be positive", "the learning rate is $0",
     "write a number above 0"},
    {"weight_decay_grows", kError, "weight decay must be constant", "variable weight decay is not supported",
     "write constant"},
    {"embedding_decay", kAdjust,
     "with embedding_init_method_std, embeddings become a parameter group without weight decay",
     "embeddings become a parameter group without weight decay, as in Megatron"},
    {"own_rate", kAdjust, "decoupled_lr becomes a parameter group with lr_scale",
     "becomes a parameter group with a multiple of the learning rate"},
    {"own_least_rate", kAdjust, "the learning rate of all groups decays to the same fraction of its peak",
     "the learning rate of all groups decays to the same fraction of its peak"},
    {"warmup_from", kAdjust, "a warm-up always starts from 0", "a warm-up starts from 0"},
    {"wsd_decay_style", kAdjust, "WSD always decays linearly",
     "the learning rate decays linearly over the last steps"},
    {"one_step_on", kWarn, "steps have the learning rates of Megatron's steps, which count from 0",
     "a step has the learning rate of Megatron's next step: Megatron counts steps from 0, fsdpd from 1"},
    {"schedule", kError, "lr_decay_style must be constant, linear, cosine or WSD", "'$0' is not supported",
     "use constant, linear, cosine or WSD"},
    {"decay_length", kAdjust, "the learning rate decays over all of the job's steps",
     "the learning rate decays over all steps of the job"},
    {"samples_are_steps", kAdjust, "lengths that are counted in samples become whole steps",
     "converted to whole steps of $0 samples"},
    {"partial_spec", kWarn, "a spec without a part that the file does not have must be completed",
     "the file does not have $0", "add this to the spec before you submit it"},
    {"auto_values", kWarn, "values that are auto are left out: the program that reads the file sets them",
     "set by the program that reads the file, and dropped: $0",
     "set these in the spec if the defaults differ"},
    {"model_preset", kAdjust, "a model is the preset of the same name and size",
     "becomes the preset with the sizes of this model; check rope_scaling"},
    {"norms_do_not_decay", kAdjust, "weight decay applies to matrices, not to norms and biases",
     "norms and biases have no weight decay"},
    {"warmup_linear", kAdjust, "a warm-up is linear", "the learning rate increases linearly"},
    {"offload_optimizer_only", kAdjust, "only the optimizer's state and activations can be offloaded",
     "only the optimizer state is offloaded"},
};

const Row* Find(const std::string& id) {
  for (const Row& row : kRows) {
    if (id == row.id) return &row;
  }
  return nullptr;
}

}  // namespace

const std::vector<MigrateRule>& ConversionRules() {
  static const auto* const rules = [] {
    auto* made = new std::vector<MigrateRule>;
    for (const Row& row : kRows) made->push_back({row.id, row.level, row.text});
    return made;
  }();
  return *rules;
}

Violation MakeViolation(const char* rule, const std::string& setting,
                        std::initializer_list<absl::AlphaNum> args) {
  const Row* row = Find(rule);
  FSDPD_CHECK(row != nullptr);
  std::vector<std::pair<std::string, std::string>> values;
  for (const absl::AlphaNum& each : args)
    values.emplace_back(absl::StrCat("$", values.size()), absl::StrCat(each));
  return {rule,
          row->level,
          setting,
          absl::StrReplaceAll(row->reason, values),
          absl::StrReplaceAll(row->fix, values),
          "",
          ""};
}

}  // namespace fsdpd
