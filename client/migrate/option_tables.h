// Data: the settings of Megatron-LM, Megatron Bridge, torchtitan, DeepSpeed and accelerate, and their meaning
// for a job spec.
//
// A line of a table is a group, with a kind and names; indented lines continue it. The kinds:
//   ignored   no effect on the trained numbers: speed, memory, logs, the end of the run
//   read      read by a converter
//   launcher  an option of torchrun, srun or nsys
//   refused   changes the model, the data or the numbers, and a spec cannot express it. The words before the
//             colon describe the feature. NAME=VALUE: has no effect with that value, else with "off"
//   field     fields of a message of the spec, with the settings that each is converted from; the first one
//             that is set counts. ! is required, ? has no default, :VALUE is the default; without these a
//             function of a converter writes the field
// Names of Megatron are canonical (option_names.h); published_runs_test.cc checks them with all published
// names. Other names are paths of values in the configuration file. A trailing * matches the rest of a name.
// Newer options are reported as `not_known` until they are added here.
#pragma once

namespace fsdpd {

// Other names of a setting; ! negates it. A name that is its own alias only starts like a negation.
constexpr char kMegatronAliases[] = R"(
use_nccl_ub=nccl_ub use_custom_fsdp=use_megatron_fsdp layernorm_epsilon=norm_epsilon
sequence_length=seq_length lr_wsd_decay_iters=wsd_decay_iters gated_linear_unit=swiglu qk_layernorm=qk_norm
grad_clip=clip_grad num_moe_experts=num_experts use_rope_scaling=rope_scaling
fsdp_manual_registration=manual_registration ddp_average_in_collective=average_in_collective
ddp_bucket_size=bucket_size ddp_num_buckets=num_buckets apply_layernorm_1p=layernorm_zero_centered_gamma
rotary_seq_len_interpolation_factor=seq_len_interpolation_factor persistent_save_interval=save_interval
no_initialization=!perform_initialization no_rope_fusion=!apply_rope_fusion
no_position_embedding=!add_position_embedding no_one_logger=!enable_one_logger
no_overlap_p2p_communication=!overlap_p2p_comm no_barrier_with_level_1_timing=!barrier_with_L1_time
disable_bias_linear=!add_bias_linear disable_gloo_process_groups=!use_gloo_process_groups
disable_mamba_mem_eff_path=!use_mamba_mem_eff_path disable_msc=!enable_msc
disable_chunked_prefill=!enable_chunked_prefill
untie_embeddings_and_output_weights=!share_embeddings_and_output_weights
torch_fsdp2_no_reshard_after_forward=!torch_fsdp2_reshard_after_forward
bert_no_binary_head=!bert_binary_head muon_no_split_qkv=!muon_split_qkv nodes=nnodes
ntasks_per_node=nproc_per_node gpus_per_node=nproc_per_node no_rope_freq=no_rope_freq
no_weight_decay_cond_type=no_weight_decay_cond_type no_sync_func=no_sync_func
disable_jit_fuser=disable_jit_fuser disable_symmetric_registration=disable_symmetric_registration
disable_straggler_on_startup=disable_straggler_on_startup
disable_parameter_transpose_cache=disable_parameter_transpose_cache
disable_bf16_reduced_precision_matmul=disable_bf16_reduced_precision_matmul
)";

constexpr char kMegatronTable[] = R"(
# Speed, memory and kernels. Fusions and layouts change at most the last bits of a result.
ignored: peft_a2a_experimental peft_dropout_position peft_lora_A_init_method peft_lora_dtype peft_normalize_moe_lora
ignored: account_for_embedding_in_pipeline_split account_for_loss_in_pipeline_split
    activation_func_fp8_input_store activation_offload_fraction align_grad_reduce align_param_gather
    apply_query_key_layer_scaling apply_rope_fusion async_tensor_model_parallel_allreduce attention_backend
    attention_softmax_in_fp32 autocast_dtype autocast_enabled barrier_with_L1_time batch_invariant_mode
    batch_p2p_comm batch_p2p_sync bias_activation_fusion bias_dropout_fusion bias_swiglu_fusion bucket_size
    check_for_large_grads check_for_nan_in_grad check_for_nan_in_loss check_for_nan_in_loss_and_grad
    check_for_spiky_loss check_optimizer_step_success clone_scatter_output_in_embedding cp_comm_type
    cp_partition_mode cpu_offloading_* create_all_gather_group create_attention_mask
    create_attention_mask_in_dataloader cross_entropy_fusion_impl cross_entropy_loss_fusion cuda_graph_*
    data_parallel_size ddp_pad_buckets_for_high_nccl_busbw
    ddp_param_name_patterns_for_fp32_local_accumulation ddp_reduce_scatter_with_fp32_accumulation
    deallocate_pipeline_outputs decoder_first_pipeline_num_layers decoder_last_pipeline_num_layers
    defer_embedding_wgrad_compute delay_offload_until_cuda_graph delay_wgrad_compute
    delta_offload_bytes_across_pp_ranks dense_grouped_gemm disable_bf16_reduced_precision_matmul
    disable_jit_fuser disable_parameter_transpose_cache disable_symmetric_registration
    distribute_saved_activations distributed_backend distributed_timeout_minutes
    distributed_timeout_seconds_after_init empty_unused_memory_level enable_autocast enable_cuda_graph
    enable_experimental enable_full_sharding_in_hsdp enable_megatron_core_experimental
    ep_overlap_early_attn_memory_release external_cuda_graph external_gpu_device_mapping fake_process_group
    fallback_to_eager_attn fine_grained_offloading_* first_last_layers_bf16 flash_decode fp32
    fp4_quantizer_factory fp4_recipe fp8_* fsdp_all_gather_in_start_param_sync
    fsdp_db_use_persist_buf_on_alloc_fail fused_residual_rmsnorm fused_single_qkv_rope
    gradient_reduce_div_fusion hierarchical_context_parallel_sizes high_priority_a2a_comm_stream
    high_priority_stream_groups keep_fp8_transpose_cache lazy_init lazy_mpu_init local_rank
    low_memory_resume manual_gc manual_gc_eval manual_gc_interval masked_softmax_fusion
    max_seqlen_per_dp_cp_rank memory_efficient_layer_norm mfsdp_cuda_graph
    microbatch_group_size_per_virtual_pipeline_stage microbatch_group_size_per_vp_stage
    min_offloaded_tensor_size mlp_chunks_for_prefill mlp_chunks_for_training nccl_all_reduce_for_prefill
    nccl_communicator_config_path num_layers_at_end_in_bf16 num_layers_at_start_in_bf16
    num_layers_in_first_pipeline_stage num_layers_in_last_pipeline_stage
    num_layers_per_virtual_pipeline_stage num_microbatches_with_partial_activation_checkpoints
    num_virtual_stages_per_pipeline_rank offload_modules offload_optimizer_states onnx_safe
    optimizer_cuda_graph optimizer_offload_fraction overlap_cpu_optimizer_d2h_h2d
    overlap_dispatch_backward_with_experts_wgrad overlap_p2p_comm overlap_p2p_comm_warmup_flush
    overlap_p2p_communication_warmup_flush overlap_param_gather_with_optimizer_step
    pad_buckets_for_high_nccl_busbw parallel_output param_name_patterns_for_fp32_local_accumulation
    params_dtype persist_layer_norm pin_cpu_grads pin_cpu_params pipeline_dtype
    pipeline_model_parallel_comm_backend pipeline_model_parallel_layout preserve_fp32_weights
    reduce_scatter_with_fp32_accumulation scatter_embedding_sequence_parallel
    scatter_gather_tensors_in_pipeline sequence_parallel sharp_enabled_group skip_sync_grad_norm_across_mp
    store_param_remainders symmetric_ar_type te_rng_tracker torch_fsdp2_reshard_after_forward tp_comm_*
    tp_only_amax_red train_sync_interval transformer_impl transformer_layer_spec use_cpu_initialization
    use_decentralized_pg use_flash_attn use_fused_weighted_squared_relu use_gloo_process_groups
    use_grouped_gemm_for_dense_mlp use_inference_optimized_layers use_layer_wise_distributed_optimizer
    use_legacy_models use_mcore_models use_ring_exchange_p2p use_sharp use_te_activation_func
    use_te_rng_tracker use_torch_optimizer_for_cpu_offload use_transformer_engine_full_layer_spec
    use_transformer_engine_op_fuser variable_seq_lengths virtual_pipeline_model_parallel_size
    wgrad_deferral_limit
# Logging, profiling and monitoring.
ignored: adlr_autoresume adlr_autoresume_interval app_tag_run_name app_tag_run_version calc_ft_timeouts
    comet_* config_logger_dir disable_straggler_on_startup dump_param_to_param_group_map enable_ft_package
    enable_one_logger enable_straggler_on_startup error_injection_* filter_warnings flight_recorder_*
    ft_num_warmup_iters gpu_sniff_test_interval inprocess_* log_* logging_level memory_keys
    memory_snapshot_path mlflow_* modules_to_filter nvrx_straggler_* nvtx_ranges one_logger_* profile
    profile_* pytorch_profiler_* record_memory_history record_shapes rerun_mode
    result_rejected_tracker_filename run_workload_inspector_server runtime_time_unit save_config_filepath
    set_level_for_all_loggers simulate_fault simulated_fault_* skip_train_metrics_log spiky_loss_factor
    straggler_* tensor_inspect_* tensorboard_* test_mode throughput_window_size timers timing_*
    use_nsys_profiler use_pytorch_profiler wandb_*
# End of the run, and files that it writes.
ignored: also_save_hf_checkpoint async_ckpt_* async_strategy async_write_results_mp_mode
    auto_detect_ckpt_format ckpt_assume_constant_structure ckpt_convert_* ckpt_fully_parallel_*
    ckpt_load_validate_sharding_integrity ckpt_step custom_manager_class dist_ckpt_*
    distrib_optim_fully_reshardable_mem_efficient exit_duration_in_mins exit_interval
    exit_on_missing_checkpoint exit_signal exit_signal_handler exit_signal_handler_for_dataloader
    exit_signal_handler_for_training fully_parallel_load fully_parallel_save hetereogenous_dist_checkpoint
    hf_distributed_save hf_model_id hf_save_every_n_ranks hf_source_path hf_trust_remote_code
    load_main_params_from_ckpt load_optim load_rng most_recent_k non_persistent_*
    override_opt_param_scheduler replication replication_* save_activations_interval save_dgrads_interval
    save_optim save_params_interval save_retain_interval save_rng save_rng_state_per_dp_rank
    save_tokenizer_assets save_tokens_per_expert_interval save_wgrads_interval
    stage_precision_aware_optimizer_state_on_cpu storage_writers_per_rank strict_fsdp_dtensor_load
    use_checkpoint_args use_checkpoint_opt_param_scheduler use_dist_ckpt use_mp_args_from_checkpoint_args
    use_persistent_ckpt_worker use_tokenizer_model_from_checkpoint_args verify_integrity
# Data loading and the tokenizer: token files already contain ids.
ignored: chat_template data_cache_path data_sharding dataloader_defer_npy_index_mmap
    dataloader_fast_cache_load defer_npy_index_mmap drop_last fast_cache_load legacy_tokenizer merge_file
    mid_level_dataset_surplus mmap_bin_files mock null_tokenizer_pad_id num_dataset_builder_threads
    num_workers object_storage_cache_path path_to_cache per_dataset_sequences_path persistent_workers
    pin_memory random_seed s3_cache_path sequences_per_dataset skip_getting_attention_mask_from_dataset
    test_data_path tiktoken_* token_dtype_code tokenizer tokenizer_* trust_remote_code vocab_extra_ids
    vocab_file
# Evaluation only; training is the same.
ignored: drop_last_partial_validation_sequence eval_at_step_zero eval_context_parallel_size
    eval_micro_batch_size start_eval_at_iter validation_set_names
# Derived by Megatron from other settings.
ignored: experimental_attention_variant_loss_scale_func finalize_model_grads_func generation_config
    grad_scale_func grad_sync_func lr_decay_steps lr_warmup_steps mtp_grad_scale_func no_sync_func
    param_sync_func wd_incr_steps wsd_decay_steps
# Options of a feature that another setting turns on. That setting is refused.
ignored: actual_vocab_size adaptive_muon_* apply_dsa_kernel_fusion beta_fast beta_slow cache_mla_latents
    csa_* dsa_* expert_tensor_parallel_size fim_* gdn_* grpo_* kitchen_attention_backend kv_lora_rank
    langrl_* linear_conv_kernel_dim linear_cp_mode linear_key_head_dim linear_num_key_heads
    linear_num_value_heads linear_value_head_dim lion_* mamba_* mhc_* mla_down_proj_fusion moe_* mok_*
    mrope_interleaved mscale mscale_all_dim mtp_* muon_* mup_* num_residual_streams o_groups o_lora_rank
    original_max_position_embeddings overlap_moe_expert_parallel_comm pad_packed_seq_alignment q_lora_rank
    qk_clip_alpha qk_clip_threshold qk_head_dim qk_pos_emb_head_dim refit_execution_batch_bytes refit_method
    relative_attention_* retro_* rl_* rl_profile rope_scaling_factor rotary_scaling_factor sft_tokenizer_prompt_format
    soap_* thd_max_packed_sequences thd_tail_padding_policy use_fused_mhc use_grouped_gemm_for_shared_expert
    use_mamba_mem_eff_path use_mok_megakernel v_head_dim window_attn_skip_freq
# Inference, and scripts other than pretrain_gpt.py.
ignored: bert_* biencoder_* block_data_path classes_fraction data_per_class_fraction decode_only_cuda_graphs
    decoder_num_layers decoder_seq_length dino_* embedding_path enable_chunked_prefill encoder_num_layers
    encoder_seq_length evidence_data_path head_lr_mult ict_* img_h img_w indexer_* inference_*
    iter_per_epoch mask_factor mask_prob mask_type max_tokens_to_oom num_channels num_classes
    num_speculative_tokens output_bert_embeddings patch_dim query_in_block_prob retriever_* return_log_probs
    short_seq_prob skip_prompt_log_probs swin_* titles_data_path use_flashinfer_fused_rope
    use_legacy_static_engine use_one_sent_docs use_same_sampling_seed_across_dp_ranks vision_*
# Options of another model family, optimizer or dtype than the run's.
ignored: adam_beta1 adam_beta2 adam_eps add_qkv_bias async_save bias_gelu_fusion ckpt_format
    end_weight_decay eval_interval eval_iters full_validation hysteresis initial_loss_scale
    loss_scale_window lr_wsd_decay_samples lr_wsd_decay_style make_vocab_size_divisible_by min_loss_scale
    pad_vocab_size recompute_method recompute_modules recompute_num_layers rope_scaling rotary_base
    rotary_percent save_interval sgd_momentum should_pad_vocab suggested_communication_unit_size vocab_size
    weight_decay wsd_decay_iters
# Object storage; fsdpd reads and writes paths of mounted file systems.
ignored: enable_msc
# Read by a converter, so that similar names are misspelled.
read: cpu_offloading_activations cuda_graph_impl cuda_graph_scope fp8_dot_product_attention
    fp8_multi_head_attention fp8_recipe fp8_wgrad inprocess_restart moe_router_dtype
    moe_router_force_load_balancing moe_router_load_balancing_type tokenizer_use_tokenizer_vocab_size
launcher: local_addr local_ranks_filter log_dir master_addr master_port max_restarts monitor_interval
    node_rank rdzv_* redirects role standalone start_method tee account capture_range capture_range_end
    comment container_image container_mounts container_name container_workdir container_writable cpu_bind
    cpuctxsw cpus_per_task cuda_memory_usage dependency error exclusive export force_overwrite gres gpus
    gpus_per_task job_name kill_on_bad_exit label mem mpi container_mount_home nodelist ntasks output
    partition qos sample time trace unbuffered wait wckey module
refused L2 normalization of queries and keys: qk_l2_norm
refused Xavier initialization: init_method_xavier_uniform
refused YaRN position scaling: rope_type=rope
refused a batch size that follows the number of ranks: decrease_batch_size_if_needed
refused a clamped activation function: activation_func_clamp_value
refused a configuration in another file (migrate that file): yaml_cfg
refused a constant loss scale: loss_scale
refused a custom initial distribution: embedding_init_method=torch.nn.init.normal_
    init_method=torch.nn.init.normal_ output_layer_init_method=torch.nn.init.normal_
refused a gate of shared experts: moe_shared_expert_gate
refused a gated feed-forward with quick GELU: quick_geglu
refused a length in epochs (write train_iters): num_epochs
refused a list of data in another file (write its content after data_path): data_args_path
refused a loss in fp16: fp16_lm_cross_entropy
refused a model without initialization: perform_initialization=true
refused a model without positional embeddings: add_position_embedding=true
refused a removed name, also rejected by Megatron (write lr_warmup_fraction): warmup
refused a removed name, also rejected by Megatron (write micro_batch_size): batch_size
refused a removed name, also rejected by Megatron (write recompute_granularity): checkpoint_activations
refused a removed name, also rejected by Megatron (write tensor_model_parallel_size): model_parallel_size
refused a residual stream in fp32: fp32_residual_connection
refused a rotary base per layer: rotary_base_per_layer
refused a schedule with another length than the run: max_steps
refused a subset of the data: sample_rate=1
refused an offset in the feed-forward: glu_linear_offset
refused an old name (write moe_router_num_groups and moe_router_group_topk): moe_router_topk_limited_devices
refused another batch size for evaluation: eval_global_batch_size
refused another kind of attention: experimental_attention_variant
refused another kind of softmax: softmax_type=vanilla
refused another scale of attention: softmax_scale
refused batch-size ramp-up: rampup_batch_size step_batch_size_schedule
refused clipping of queries and keys: qk_clip
refused context parallelism by sequence length: dynamic_context_parallel
refused custom layers: spec
refused different initialization of replicas: data_parallel_random_init
refused evaluation of each validation set by itself: multiple_validation_sets
refused evaluation without training: skip_train
refused experts between narrower layers: moe_latent_size
refused fill-in-the-middle data: fim_data fim_rate
refused fine-tuning from a checkpoint: finetune
refused adapters without some modules: peft_exclude_modules
refused dropout of adapters: peft_dropout=0
refused initialization of an adapter's output: peft_lora_B_init_method=zero
refused forced expert selection: moe_router_force_biased
refused gated attention: attention_output_gate head_wise_attn_gate
refused heterogeneous layers: heterogeneous_*
refused hybrid models: hybrid_attention_ratio hybrid_layer_pattern hybrid_mlp_ratio hybrid_override_pattern
    is_hybrid_model
refused hyper-connections: enable_hyper_connections
refused interleaved rotary positions: rotary_interleaved
refused layers without positional embeddings: no_rope_freq
refused linear attention: linear_attention_freq linear_attention_type
refused lists of data in another file (write their content after train_data_path): per_split_data_args_path
refused low-precision recipes: kitchen_config_file kitchen_recipe_number quant_recipe
    te_precision_config_file use_kitchen use_kitchen_attention
refused maximal update parametrization: use_mup
refused multi-token prediction: mtp_enabled mtp_num_layers
refused multimodal positional embeddings: mrope_section
refused noise in the router input: moe_input_jitter_eps
refused packed sequences: sequence_packing_scheduler
refused padding by a token id of the text: allow_ambiguous_pad_tokens
refused phases of data: phase_transition_iterations
refused position scaling: seq_len_interpolation_factor=1
refused quantized or distilled models: restore_modelopt_state
refused reinforcement learning: perform_rl_step
refused residual connections after the norm: apply_residual_connection_post_layernorm
refused retrieval: retro_add_retriever retro_project_dir
refused samples without an extra token: add_extra_token_to_sequence=true
refused scores applied to the input of experts: moe_apply_probs_on_input
refused skipped steps: iterations_to_skip
refused sliding-window attention: window_size
refused squared ReLU: squared_relu
refused supervised fine-tuning: sft
refused token dropping in experts: moe_expert_capacity_factor moe_expert_rank_capacity_factor
    moe_pad_expert_input_to_capacity moe_token_dropping
refused token routing between layers: moe_n_hash_layers
refused upcycling of a dense model to experts: moe_use_upcycling
refused weight decay added to the gradient: decoupled_weight_decay=true
refused weight decay by a condition: no_weight_decay_cond_type
refused weight decay on the norms of queries and keys: apply_wd_to_qk_layernorm
field model.llama: vocab_size=padded_vocab_size,vocab_size,tokenizer_vocab_size hidden_size=hidden_size!
    layers=num_layers! heads=num_attention_heads! intermediate_size=ffn_hidden_size,hidden_size
    kv_heads=num_query_groups,group_query_attention head_size=kv_channels positions=max_position_embeddings?
    rope_theta=rotary_base:10000 norm_epsilon=norm_epsilon:1e-5
    tied_embeddings=share_embeddings_and_output_weights:true qk_norm=qk_norm
    attention_bias=add_qkv_bias:false
field model.llama.rope_scaling: factor=rope_scaling_factor,rotary_scaling_factor,rope_scaling
    low_freq_factor=beta_slow:1 high_freq_factor=beta_fast:32
    original_positions=original_max_position_embeddings:4096
field model.llama.rope_scaling.yarn: mscale=mscale:1 mscale_all_dim=mscale_all_dim:0
field model.llama.latent_attention: rank=kv_lora_rank! query_rank=q_lora_rank?
    plain_head_size=qk_head_dim:128 rotary_head_size=qk_pos_emb_head_dim:64 value_head_size=v_head_dim:128
field model.llama.experts: count=num_experts per_token=moe_router_topk:2
    intermediate_size=moe_ffn_hidden_size? shared_intermediate_size=moe_shared_expert_intermediate_size
    dense_layers=moe_layer_freq normalized=moe_router_pre_softmax scores=moe_router_score_function
    groups=moe_router_num_groups groups_per_token=moe_router_group_topk
    group_scores=moe_router_group_topk,moe_router_topk weight_scale=moe_router_topk_scaling_factor?
    selection_bias=moe_router_enable_expert_bias:false bias_update_rate=moe_router_bias_update_rate
    balance_loss=moe_aux_loss_coeff z_loss=moe_z_loss_coeff?
field model.llama: rope_scaling=rope_scaling,rotary_scaling_factor latent_attention=multi_latent_attention
    experts=num_experts
field model.gpt2: vocab_size=padded_vocab_size,vocab_size,tokenizer_vocab_size hidden_size=hidden_size!
    layers=num_layers! heads=num_attention_heads! positions=max_position_embeddings!
    intermediate_size=ffn_hidden_size? norm_epsilon=norm_epsilon:1e-5
    untied_embeddings=share_embeddings_and_output_weights
field data: tokens=train_data_path,data_path synthetic=mock_data sequence_length=seq_length!
    document_end_token=null_tokenizer_eod_id,reset_attention_mask validation=valid_data_path
field train: steps=train_iters,train_samples micro_batch=micro_batch_size:1
    global_batch=global_batch_size,micro_batch_size seed=seed:1234 deterministic=deterministic_mode:false
field train.lora: rank=peft_dim:32 alpha=peft_alpha:32 targets=peft_target_modules
    base_model=pretrained_checkpoint
field train.evaluation: every_steps=eval_interval samples=eval_iters
field train.initial: std=init_method_std:0.02 embedding_std=embedding_init_method_std?
    scale_outputs=init_method_std
field optimizer.adamw: lr=lr betas[0]=adam_beta1:0.9 betas[1]=adam_beta2:0.999 eps=adam_eps:1e-8
    weight_decay=end_weight_decay,weight_decay
field optimizer.sgd: lr=lr momentum=sgd_momentum:0.9 weight_decay=end_weight_decay,weight_decay
field optimizer: clip_norm=clip_grad:1 groups=decoupled_lr,embedding_init_method_std
field schedule.constant: warmup_steps=lr_warmup_fraction,lr_warmup_iters,lr_warmup_samples
field schedule.linear: warmup_steps=lr_warmup_fraction,lr_warmup_iters,lr_warmup_samples min_lr_ratio=min_lr
field schedule.cosine: warmup_steps=lr_warmup_fraction,lr_warmup_iters,lr_warmup_samples min_lr_ratio=min_lr
field schedule.wsd: warmup_steps=lr_warmup_fraction,lr_warmup_iters,lr_warmup_samples min_lr_ratio=min_lr
    decay_steps=wsd_decay_iters,lr_wsd_decay_samples
field precision: compute=mixed_precision,fp8_format,fp8,fp8_e4m3,fp8_hybrid,bf16,fp16
field precision.fp8: keep_bf16=first_last_layers_bf16
field precision: fp8=first_last_layers_bf16 main_params=megatron_fsdp_main_params_dtype,main_params_dtype
    main_grads=megatron_fsdp_main_grads_dtype,grad_reduce_in_bf16,main_grads_dtype,grad_reduce_in_fp32,accumulate_allreduce_grads_in_fp32,bf16
    grad_comm=megatron_fsdp_grad_comm_dtype,megatron_fsdp_main_grads_dtype,grad_reduce_in_bf16,main_grads_dtype,grad_reduce_in_fp32,bf16
    moments=exp_avg_dtype
field precision.loss_scale: initial=initial_loss_scale? growth_interval=loss_scale_window?
field fsdp: strategy=data_parallel_sharding_strategy,use_megatron_fsdp
    prefetch_bytes=suggested_communication_unit_size recompute=recompute_granularity,recompute_activations
    recompute_layers=recompute_num_layers
field fsdp.offload: optimizer=optimizer_cpu_offload
    activation_layers=cpu_offloading_num_layers,cpu_offloading
field fsdp.outer: size=num_distributed_optimizer_instances strategy=outer_dp_sharding_strategy
field parallel: tensor=tensor_model_parallel_size:1 context=context_parallel_size:1
    expert=expert_model_parallel_size:1 pipeline=pipeline_model_parallel_size:1
field checkpoint: dir=save every_steps=save_interval load=load,pretrained_checkpoint
    load_optimizer=load_optim,pretrained_checkpoint
field resources: nodes=nnodes ranks_per_node=nproc_per_node
)";

// Names of torchtitan/config/job_config.py at 6404b932421f5ce382e7dac5ad381b2c17b1373c and of later releases
// of 2025.
constexpr char kTorchtitanTable[] = R"(
ignored: job.* profiling.* metrics.* memory_estimation.* comm.* compile.* experimental.* liger_kernel.*
    model.tokenizer_path model.hf_assets_path model.print_after_conversion optimizer.implementation
    optimizer.early_step_in_backward training.compile training.gc_freq training.gc_debug
    parallelism.enable_compiled_autograd parallelism.disable_loss_parallel
    parallelism.enable_async_tensor_parallel parallelism.pipeline_* parallelism.module_fqns_per_model_part
    parallelism.context_parallel_rotate_method parallelism.expert_tensor_parallel_degree
    checkpoint.* activation_checkpoint.* float8.* mx.* quantize.* fault_tolerance.* validation.* debug.*
refused a checkpoint that is loaded in part: checkpoint.exclude_from_loading
refused custom code: experimental.custom_import experimental.custom_args_module job.custom_config_module
refused forced expert selection: debug.moe_force_load_balance training.debug_moe_force_load_balance
refused semi-synchronous training: fault_tolerance.semi_sync_method
refused a number of replicas that changes: fault_tolerance.enable
field model: preset=model.flavor,model.name
field data: sequence_length=training.seq_len:2048 tokens=training.dataset_path,training.dataset
    synthetic=training.dataset
field train: steps=training.steps:10000 micro_batch=training.local_batch_size,training.batch_size:8
    global_batch=training.global_batch_size,training.local_batch_size,training.batch_size
    seed=training.seed,debug.seed? deterministic=training.deterministic,debug.deterministic:false
field train.evaluation: every_steps=validation.enable,validation.enabled
field optimizer: clip_norm=training.max_norm:1
field optimizer.adamw: lr=optimizer.lr:8e-4 betas[0]=optimizer.beta1:0.9 betas[1]=optimizer.beta2:0.95
    eps=optimizer.eps:1e-8 weight_decay=optimizer.weight_decay:0.1
field schedule.linear: warmup_steps=lr_scheduler.warmup_steps:200
    min_lr_ratio=lr_scheduler.min_lr_factor,lr_scheduler.lr_min:0
field schedule.cosine: warmup_steps=lr_scheduler.warmup_steps:200
    min_lr_ratio=lr_scheduler.min_lr_factor,lr_scheduler.lr_min:0
field schedule.wsd: warmup_steps=lr_scheduler.warmup_steps:200 decay_steps=lr_scheduler.decay_ratio
    min_lr_ratio=lr_scheduler.min_lr_factor,lr_scheduler.lr_min:0
field precision: compute=model.converters,training.mixed_precision_param main_params=training.dtype
    grad_comm=training.mixed_precision_reduce
field fsdp: strategy=parallelism.data_parallel_shard_degree recompute=activation_checkpoint.mode
    keep_gathered=parallelism.fsdp_reshard_after_forward
field fsdp.outer: size=parallelism.data_parallel_replicate_degree
field fsdp.offload: optimizer=training.enable_cpu_offload
field parallel: tensor=parallelism.tensor_parallel_degree:1 context=parallelism.context_parallel_degree:1
    expert=parallelism.expert_parallel_degree:1 pipeline=parallelism.pipeline_parallel_degree:1
field checkpoint: dir=checkpoint.folder,job.dump_folder every_steps=checkpoint.interval:500
    keep_last=checkpoint.keep_latest_k load=checkpoint.initial_load_path
)";

// Names of docs/_pages/config-json.md at 00376da49967bc6a15d70a550200ac67277b1fb4.
constexpr char kDeepSpeedTable[] = R"(
ignored: steps_per_print wall_clock_breakdown dump_state memory_breakdown disable_allgather prescale_gradients
    gradient_predivide_factor sparse_gradients communication_data_type seq_parallel_communication_data_type
    zero_allow_untested_optimizer zero_force_ds_cpu_optimizer graph_harvesting checkpoint.* comms_logger.*
    activation_checkpointing.* aio.* flops_profiler.* tensorboard.* wandb.* csv_monitor.* comet.* nebula.*
    autotuning.* compile.* torch_autocast.* optimizer.params.torch_adam optimizer.params.bias_correction
    scheduler.params.* zero_optimization.* fp16.* bf16.* elasticity.enabled tensor_parallel.*
refused a compressed model: compression_training.*
refused a batch size that follows the number of ranks: elasticity.*
refused curriculum learning: curriculum_learning.* data_efficiency.*
refused dropped layers: progressive_layer_drop.*
refused sparse attention: sparse_attention.*
refused mixed precision by apex: amp.*
refused quantized communication: zero_optimization.zero_quantized_weights
    zero_optimization.zero_quantized_gradients zero_optimization.zero_quantized_nontrainable_weights
refused a second shard group for parameters: zero_optimization.zero_hpz_partition_size=1
    zero_optimization.mics_shard_size=-1
refused pipeline stages (write parallel.pipeline): pipeline.*
field train: micro_batch=train_micro_batch_size_per_gpu,train_batch_size
    steps=scheduler.params.total_num_steps?
    global_batch=train_batch_size,gradient_accumulation_steps,train_micro_batch_size_per_gpu seed=seed?
field optimizer: clip_norm=gradient_clipping:0
field optimizer.adamw: lr=optimizer.params.lr? betas=optimizer.params.betas eps=optimizer.params.eps:1e-8
    weight_decay=optimizer.params.weight_decay:0
field optimizer.sgd: lr=optimizer.params.lr? momentum=optimizer.params.momentum:0
    weight_decay=optimizer.params.weight_decay:0
field schedule.constant: warmup_steps=scheduler.params.warmup_num_steps:1000
field schedule.linear: warmup_steps=scheduler.params.warmup_num_steps:1000
field schedule.cosine: warmup_steps=scheduler.params.warmup_num_steps:1000
    min_lr_ratio=scheduler.params.cos_min_ratio:1e-4
field precision: compute=bf16.enabled,fp16.enabled grad_comm=communication_data_type
    main_grads=data_types.grad_accum_dtype
field precision.loss_scale: initial=fp16.initial_scale_power growth_interval=fp16.loss_scale_window:1000
field fsdp: strategy=zero_optimization.stage
    prefetch_bytes=zero_optimization.stage3_prefetch_bucket_size
field fsdp.offload: optimizer=zero_optimization.offload_optimizer.device
field parallel: tensor=tensor_parallel.autotp_size:1
)";

// Names of commands/config/config_args.py at 002dd35a68fd5d11953d1749dbd3e50a88db3062.
constexpr char kAccelerateTable[] = R"(
ignored: compute_environment debug downcast_bf16 enable_cpu_affinity gpu_ids machine_rank main_process_ip
    main_process_port main_training_function rdzv_backend same_network dynamo_config.* mpirun_config.*
    ipex_config.* fp8_config.* tpu_* fsdp_config.* parallelism_config.* megatron_lm_config.*
    deepspeed_config.*
refused a DeepSpeed configuration in another file (migrate that file): deepspeed_config.deepspeed_config_file
refused training on CPUs (write resources.device): use_cpu
refused sequence parallelism of DeepSpeed: parallelism_config.parallelism_config_sp_size=1
field resources: nodes=num_machines ranks_per_node=num_processes
field optimizer: clip_norm=deepspeed_config.gradient_clipping,megatron_lm_config.megatron_lm_gradient_clipping?
field precision: compute=mixed_precision
field fsdp: strategy=distributed_type,fsdp_config.fsdp_sharding_strategy,deepspeed_config.zero_stage
    keep_gathered=fsdp_config.fsdp_reshard_after_forward,fsdp_config.fsdp_sharding_strategy
    recompute=fsdp_config.fsdp_activation_checkpointing
field fsdp.outer: size=parallelism_config.parallelism_config_dp_replicate_size,fsdp_config.fsdp_sharding_strategy
field fsdp.offload: optimizer=fsdp_config.fsdp_offload_params,deepspeed_config.offload_optimizer_device
field parallel: tensor=parallelism_config.parallelism_config_tp_size,megatron_lm_config.megatron_lm_tp_degree:1
    context=parallelism_config.parallelism_config_cp_size:1
    pipeline=megatron_lm_config.megatron_lm_pp_degree:1
)";

}  // namespace fsdpd
