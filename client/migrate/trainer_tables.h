// Data: the settings of torchtitan, DeepSpeed and accelerate, and their meaning for a job spec, in the
// format of megatron_table.h. A name is the path of a value in the configuration file. The names are those
// of torchtitan's torchtitan/config/job_config.py at 6404b932421f5ce382e7dac5ad381b2c17b1373c and of later
// releases of 2025, of DeepSpeed's docs/_pages/config-json.md at 00376da49967bc6a15d70a550200ac67277b1fb4,
// and of accelerate's commands/config/config_args.py at 002dd35a68fd5d11953d1749dbd3e50a88db3062.
#pragma once

namespace fsdpd {

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
