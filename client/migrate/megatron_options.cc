#include "client/migrate/megatron_options.h"

#include <absl/strings/ascii.h>
#include <absl/strings/match.h>
#include <absl/strings/string_view.h>
#include <absl/strings/strip.h>

#include <algorithm>

namespace fsdpd {
namespace {

// By Megatron-LM's own names; * is the rest of a name. Settings that a rule (megatron_rules.cc) or a field of
// the spec (job_of_megatron.cc) reads never come here.
constexpr absl::string_view kWithoutEffect[] = {
    // clang-format off
    "account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split", "adlr_autoresume",
    "adlr_autoresume_interval", "align_grad_reduce", "align_param_gather", "all_gather_in_start_param_sync",
    "apply_rope_fusion", "async_strategy", "async_tensor_model_parallel_allreduce", "attention_backend",
    "attention_softmax_in_fp32", "auto_detect_ckpt_format", "auto_tune", "barrier_with_L1_time",
    "batch_p2p_comm", "batch_p2p_communication", "batch_p2p_sync", "bias_activation_fusion",
    "bias_dropout_fusion", "bias_gelu_fusion", "bias_swiglu_fusion", "blend", "blend_per_split",
    "bucket_size", "check_for_large_grads", "check_for_nan_in_grad", "check_for_nan_in_loss",
    "check_for_nan_in_loss_and_grad", "check_for_spiky_loss", "check_optimizer_step_success",
    "ckpt_assume_constant_structure", "ckpt_convert_format", "ckpt_convert_save",
    "ckpt_fully_parallel_load", "ckpt_fully_parallel_save", "ckpt_step",
    "clone_scatter_output_in_embedding", "config_logger_dir", "cp_comm_type", "cpu_offloading_*",
    "create_all_gather_group", "create_attention_mask_in_dataloader", "cross_entropy_fusion_impl",
    "cross_entropy_loss_fusion", "cuda_graph_*", "data_cache_path", "data_parallel_random_init",
    "data_sharding", "dataset_impl", "ddp_average_in_collective", "ddp_bucket_size", "ddp_num_buckets",
    "ddp_pad_buckets_for_high_nccl_busbw", "deallocate_pipeline_outputs",
    "decoder_first_pipeline_num_layers", "decoder_last_pipeline_num_layers", "decoupled_min_lr",
    "defer_embedding_wgrad_compute", "delay_wgrad_compute", "deprecated_use_mcore_models",
    "deterministic_mode", "disable_jit_fuser", "disable_symmetric_registration", "dist_ckpt_*",
    "dist_ckpt_strictness", "dist_url", "distribute_saved_activations", "distributed_backend",
    "distributed_timeout_minutes", "do_test", "do_validation", "dump_param_to_param_group_map",
    "empty_unused_memory_level", "enable_cuda_graph", "enable_ft_package", "enable_gloo_process_groups",
    "enable_one_logger", "encoder_seq_length", "error_injection_*", "exit_duration_in_mins",
    "exit_interval", "exit_on_missing_checkpoint", "exit_signal", "exit_signal_handler",
    "exit_signal_handler_for_dataloader", "expert_tensor_parallel_size", "external_cuda_graph",
    "fake_process_group", "fine_grained_activation_offloading_*", "flash_decode", "fp8_amax_compute_algo",
    "fp8_amax_history_len", "fp8_dot_product_attention", "fp8_interval", "fp8_margin",
    "fp8_multi_head_attention", "fp8_recipe", "fp8_wgrad", "fsdp_all_gather_in_start_param_sync",
    "fsdp_db_use_persist_buf_on_alloc_fail", "ft_num_warmup_iters", "fused_single_qkv_rope",
    "grad_reduce_in_bf16", "grad_reduce_in_fp32", "gradient_accumulation_fusion",
    "gradient_reduce_div_fusion", "group", "hierarchical_context_parallel_sizes",
    "high_priority_stream_groups", "ignore_checkpoint", "inference_*", "inprocess_*",
    "keep_fp8_transpose_cache", "keep_last_n_checkpoints", "lazy_init", "lazy_mpu_init", "load_optim",
    "load_rng", "local_rank", "log_*", "log_dir", "logging_level", "lr_decay_steps", "lr_warmup_steps",
    "mamba_head_dim", "mamba_num_groups", "mamba_num_heads", "mamba_state_dim", "manual_gc",
    "manual_gc_eval", "manual_gc_interval", "manual_gc_steps", "masked_softmax_fusion", "master_addr",
    "master_port", "max_restarts", "max_tokens_to_oom", "megatron_fsdp_cuda_graph_mode",
    "megatron_fsdp_enable_fine_grained_param_gather", "megatron_fsdp_use_decoupled_grad",
    "memory_efficient_layer_norm", "memory_snapshot_path", "merge_file", "merges_file",
    "microbatch_group_size_per_virtual_pipeline_stage", "min_loss_scale", "mmap_bin_files", "moe_*",
    "monitor_*", "monitor_interval", "mtp_loss_scaling_factor", "name_or_path",
    "nccl_communicator_config_path", "no_load_optim", "no_load_rng", "no_save_optim", "no_save_rng",
    "node_rank", "non_persistent_*", "num_dataset_builder_threads", "num_layers_per_virtual_pipeline_stage",
    "num_virtual_stages_per_pipeline_rank", "num_workers", "object_storage_cache_path", "one_logger_*",
    "onnx_safe", "optimizer_cpu_offload", "optimizer_cpu_offload_fraction", "optimizer_cuda_graph",
    "optimizer_offload_fraction", "overlap_cpu_optimizer_d2h_h2d", "overlap_moe_expert_parallel_comm",
    "overlap_p2p_comm", "overlap_p2p_communication", "overlap_p2p_communication_warmup_flush",
    "overlap_param_gather_with_optimizer_step", "override_opt_param_scheduler", "p2p_*",
    "pad_buckets_for_high_nccl_busbw", "padded_vocab_size", "params_dtype", "path_to_cache",
    "perform_initialization", "perform_initialization_on_cpu", "persist_layer_norm", "persistent_workers",
    "pin_memory", "pipeline_dtype", "pipeline_model_parallel_comm_backend", "position_embedding", "profile",
    "profile_*", "pytorch_profiler_*", "qk_clip_alpha", "qk_clip_threshold", "rank", "rdzv_*",
    "recompute_num_layers", "record_memory_history", "redirects", "replication", "replication_*",
    "report_theoretical_memory", "rerun_*", "rerun_mode", "result_rejected_tracker_filename", "retain_*",
    "role", "rope_fusion", "rope_scaling_factor", "run_workload_inspector_server", "save_interval",
    "save_optim", "save_retain_interval", "save_rng", "sequence_parallel", "serialize",
    "sharp_enabled_group", "skip_casting_dtype_for_param_pattern",
    "skip_getting_attention_mask_from_dataset", "standalone", "start_method", "store_param_remainders",
    "straggler_*", "strict_fsdp_dtensor_load", "suggested_communication_unit_size", "target",
    "te_rng_tracker", "tee", "tensorboard_*", "test_data_path", "test_mode", "theoretical_memory_report",
    "tiktoken_*", "timing_*", "tokenizer_*", "tp_comm_*", "transformer_impl", "trust_remote_code",
    "use_checkpoint_args", "use_checkpoint_opt_param_scheduler", "use_cpu_initialization",
    "use_decentralized_pg", "use_dist_ckpt", "use_flash_attn", "use_fused_weighted_squared_relu",
    "use_gloo_process_groups", "use_legacy_models", "use_mcore_models", "use_mp_args_from_checkpoint_args",
    "use_one_sent_docs", "use_persistent_ckpt_worker", "use_precision_aware_optimizer",
    "use_pytorch_profiler", "use_ring_exchange_p2p", "use_sharp", "use_te_activation_func",
    "use_te_rng_tracker", "use_tokenizer_model_from_checkpoint_args", "variable_seq_lengths",
    "verify_integrity", "vocab_extra_ids", "vocab_file", "wandb_*", "warn_*", "wd_incr_steps",
    "worker_type", "wsd_decay_steps", "yaml_cfg",
    // clang-format on
};

constexpr absl::string_view kNotSupported[] = {
    // clang-format off
    "activation_func_clamp_value", "activation_func_fp8_input_store", "add_embedding_layernorm",
    "add_position_embedding", "apply_layernorm_1p", "apply_query_key_layer_scaling",
    "apply_residual_connection_post_layernorm", "attention_output_gate", "attention_sink", "bert_*",
    "biencoder_*", "block_data_path", "classes_fraction", "cross_entropy_z_loss", "data_args_path",
    "data_path_split", "decoder_num_layers", "decoder_seq_length", "decoder_tp_comm",
    "decrease_batch_size_if_needed", "dino_*", "disable_mamba_mem_eff_path", "encoder_num_layers",
    "eod_mask_loss", "experimental_attention_variant", "external_dataloader", "fim_*", "fim_data",
    "finetune", "first_k_dense_replace", "fp16_lm_cross_entropy", "fp32_residual_connection", "freeze_*",
    "full_validation", "glu_linear_offset", "goldfish_h", "goldfish_k", "goldfish_loss", "group_mlp",
    "heterogeneous_*", "hybrid_*", "init_method_xavier_uniform", "init_model_from_hf", "is_hybrid_model",
    "iterations_to_skip", "kitchen_*", "kv_lora_rank", "label_smoothing", "layernorm_zero_centered_gamma",
    "legacy_tokenizer_split", "linear_attention_*", "lora_*", "loss_scale", "mamba_*", "mask_prob",
    "mask_type", "mlp_chunks_for_training", "mrope_section", "mtp_*", "multi_latent_attention",
    "multimodal_*", "multiple_validation_sets", "muon_*", "mup_*", "no_initialization", "no_rope_freq",
    "no_weight_decay_cond_type", "nope_layer_freq", "normalization_after", "num_moe_experts",
    "num_query_tokens", "openai_gelu", "peft", "per_split_data_args_path", "perform_initialization_skip",
    "perform_rl_step", "position_embedding_hash", "q_lora_rank", "qk_clip", "qk_head_dim", "qk_l2_norm",
    "qk_pos_emb_head_dim", "quick_geglu", "rampup_batch_size", "relative_attention_*",
    "reset_attention_mask", "reset_position_ids", "retriever_*", "retro_*", "rl_*", "rope_scaling_type",
    "rotary_interleaved", "rotary_scaling_factor", "rotary_seq_len_interpolation_factor", "sample_rate",
    "seq_len_interpolation_factor", "sft", "sink_tokens", "skip_train", "softmax_scale", "softmax_type",
    "spec", "squared_relu", "step_batch_size_schedule", "swin_*", "t5_*", "te_precision_config_file",
    "train_full_dataset", "use_kitchen", "use_mup", "use_rotary_position_embeddings_hashed", "v_head_dim",
    "vision_*", "window_attn_skip_freq", "window_size", "yarn_*", "z_loss_coeff", "zero_centered_gamma",
    // clang-format on
};

// How many characters of the name the list knows: all of it by an entry of its own, which wins over a
// beginning.
template <size_t kSize>
size_t Known(absl::string_view name, const absl::string_view (&list)[kSize]) {
  size_t known = 0;
  for (absl::string_view each : list) {
    const bool beginning = absl::ConsumeSuffix(&each, "*");
    if (beginning ? absl::StartsWith(name, each) : name == each) known = std::max(known, each.size());
  }
  return known;
}

// Bridge writes every setting, most of them as what they are when nobody sets them.
bool IsOff(const Setting& setting) {
  if (setting.values.size() != 1) return false;
  const std::string value = absl::AsciiStrToLower(setting.values.front());
  for (const char* off : {"", "false", "none", "null", "0", "0.0"}) {
    if (value == off) return true;
  }
  return setting.name == "softmax_type" && value == "vanilla";
}

}  // namespace

OptionKind KindOf(const Setting& setting) {
  const size_t without_effect = Known(setting.name, kWithoutEffect);
  const size_t not_supported = Known(setting.name, kNotSupported);
  if (without_effect == 0 && not_supported == 0) return OptionKind::kUnknown;
  if (without_effect >= not_supported || IsOff(setting)) return OptionKind::kWithoutEffect;
  return OptionKind::kNotSupported;
}

}  // namespace fsdpd
