#include "client/migrate/option_names.h"

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>

#include <map>
#include <set>

namespace fsdpd {
namespace {

const std::map<std::string, OptionName>& Aliases() {
  static const auto* aliases = new std::map<std::string, OptionName>{
      {"use_nccl_ub", {"nccl_ub"}},
      {"use_custom_fsdp", {"use_megatron_fsdp"}},
      {"layernorm_epsilon", {"norm_epsilon"}},
      {"sequence_length", {"seq_length"}},
      {"lr_wsd_decay_iters", {"wsd_decay_iters"}},
      {"gated_linear_unit", {"swiglu"}},
      {"qk_layernorm", {"qk_norm"}},
      {"grad_clip", {"clip_grad"}},
      {"num_moe_experts", {"num_experts"}},
      {"use_rope_scaling", {"rope_scaling"}},
      {"fsdp_manual_registration", {"manual_registration"}},
      {"ddp_average_in_collective", {"average_in_collective"}},
      {"ddp_bucket_size", {"bucket_size"}},
      {"ddp_num_buckets", {"num_buckets"}},
      {"apply_layernorm_1p", {"layernorm_zero_centered_gamma"}},
      {"rotary_seq_len_interpolation_factor", {"seq_len_interpolation_factor"}},
      {"persistent_save_interval", {"save_interval"}},
      {"no_initialization", {"perform_initialization", true}},
      {"no_rope_fusion", {"apply_rope_fusion", true}},
      {"no_position_embedding", {"add_position_embedding", true}},
      {"no_one_logger", {"enable_one_logger", true}},
      {"no_overlap_p2p_communication", {"overlap_p2p_comm", true}},
      {"no_barrier_with_level_1_timing", {"barrier_with_L1_time", true}},
      {"disable_bias_linear", {"add_bias_linear", true}},
      {"disable_gloo_process_groups", {"use_gloo_process_groups", true}},
      {"disable_mamba_mem_eff_path", {"use_mamba_mem_eff_path", true}},
      {"disable_msc", {"enable_msc", true}},
      {"disable_chunked_prefill", {"enable_chunked_prefill", true}},
      {"untie_embeddings_and_output_weights", {"share_embeddings_and_output_weights", true}},
      {"torch_fsdp2_no_reshard_after_forward", {"torch_fsdp2_reshard_after_forward", true}},
      {"bert_no_binary_head", {"bert_binary_head", true}},
      {"muon_no_split_qkv", {"muon_split_qkv", true}},
      // Slurm's names of torchrun's options.
      {"nodes", {"nnodes"}},
      {"ntasks_per_node", {"nproc_per_node"}},
      {"gpus_per_node", {"nproc_per_node"}},
  };
  return *aliases;
}

// Names that start like a negation but are not one.
bool IsNotNegation(const std::string& name) {
  static const auto* plain = new std::set<std::string>{"no_rope_freq",
                                                       "no_weight_decay_cond_type",
                                                       "no_sync_func",
                                                       "disable_jit_fuser",
                                                       "disable_symmetric_registration",
                                                       "disable_straggler_on_startup",
                                                       "disable_parameter_transpose_cache",
                                                       "disable_bf16_reduced_precision_matmul"};
  return plain->count(name) > 0;
}

}  // namespace

OptionName NameOfFlag(const std::string& written) {
  const auto alias = Aliases().find(written);
  if (alias != Aliases().end()) return alias->second;
  if (IsNotNegation(written)) return {written};
  for (const char* no : {"no_", "disable_"}) {
    if (!absl::StartsWith(written, no)) continue;
    OptionName name = NameOfFlag(written.substr(std::string(no).size()));
    name.negated = !name.negated;
    return name;
  }
  return {written};
}

OptionName NameOfKey(const std::string& section, const std::string& key) {
  for (const char* own : {"tokenizer", "nvrx_straggler", "inprocess_restart", "tensor_inspect", "peft"}) {
    if (section != own) continue;
    return {absl::StartsWith(key, absl::StrCat(section, "_")) ? key : absl::StrCat(section, "_", key)};
  }
  const auto alias = Aliases().find(key);
  return alias != Aliases().end() ? alias->second : OptionName{key};
}

}  // namespace fsdpd
