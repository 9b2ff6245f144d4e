#include "agent/metrics/agent_metrics.h"

namespace fsdpd {
namespace {

constexpr MetricKind kCounter = MetricKind::kCounter, kGauge = MetricKind::kGauge;

constexpr Metric kTable[] = {
    // Metrics per rank, exported while it runs and for five minutes after it ended.
    {"fsdpd_steps_total", kCounter, "", "fsdpd_job, rank", "Optimizer steps done in this attempt."},
    {"fsdpd_step_seconds_total", kCounter, "seconds", "fsdpd_job, rank",
     "Wall time of all steps of this attempt."},
    {"fsdpd_tokens_total", kCounter, "", "fsdpd_job, rank", "This rank's share of the tokens trained on."},
    {"fsdpd_loss_tokens_total", kCounter, "", "fsdpd_job, rank",
     "This rank's share of these tokens that counted in the loss: not padding, and not masked."},
    {"fsdpd_compute_seconds_total", kCounter, "seconds", "fsdpd_job, rank",
     "Time that the compute lane was busy."},
    {"fsdpd_exposed_seconds_total", kCounter, "seconds", "fsdpd_job, rank",
     "Time with communication in flight while the compute lane was idle."},
    {"fsdpd_data_wait_seconds_total", kCounter, "seconds", "fsdpd_job, rank",
     "Time that the rank waited for the tokens of steps before it launched them."},
    {"fsdpd_skipped_steps_total", kCounter, "", "fsdpd_job, rank",
     "Steps without an update: a gradient was not finite, or a spike."},
    {"fsdpd_memory_spikes_total", kCounter, "", "fsdpd_job, rank",
     "Steps whose peak exceeded 1.1 times the median of earlier steps, or both the plan and all "
     "earlier steps."},
    {"fsdpd_device_mallocs_total", kCounter, "", "fsdpd_job, rank",
     "Device memory allocations of the rank's process, by any library; calls of malloc by the "
     "allocator on CPU ranks."},
    {"fsdpd_device_frees_total", kCounter, "", "fsdpd_job, rank",
     "Device memory deallocations of the rank's process; calls of free by the allocator on CPU "
     "ranks."},
    {"fsdpd_allocations_total", kCounter, "", "fsdpd_job, rank",
     "Allocator requests, served from the cache or not."},
    {"fsdpd_comm_seconds_total", kCounter, "seconds", "fsdpd_job, rank, op",
     "Time that communication lanes were busy, by operation: all_gather, reduce_scatter, "
     "all_reduce; outer_reduce and outer_gather in jobs with replicas; stage in jobs with pipeline "
     "stages."},
    {"fsdpd_comm_exposed_seconds_total", kCounter, "seconds", "fsdpd_job, rank, op",
     "Communication time with the compute lane idle, by operation; concurrent operations count for "
     "each."},
    {"fsdpd_comm_bytes_total", kCounter, "bytes", "fsdpd_job, rank, op",
     "Bytes that this rank received, by operation."},
    {"fsdpd_copy_engines", kGauge, "", "fsdpd_job, rank",
     "1 if all-gathers of the rank's GPU and its peers use copy engines; 0 if they use NCCL "
     "kernels, which take multiprocessors from compute."},
    {"fsdpd_step_seconds", kGauge, "seconds", "fsdpd_job, rank", "Wall time of the last step."},
    {"fsdpd_loss", kGauge, "", "fsdpd_job, rank", "Mean loss of the last step's global batch."},
    {"fsdpd_grad_norm", kGauge, "", "fsdpd_job, rank",
     "Global gradient norm of the last step, before clipping."},
    {"fsdpd_learning_rate", kGauge, "", "fsdpd_job, rank", "Learning rate of the last step."},
    {"fsdpd_loss_scale", kGauge, "", "fsdpd_job, rank", "Loss scale of the last step; fp16 only."},
    {"fsdpd_validation_loss", kGauge, "", "fsdpd_job, rank",
     "Mean loss over the validation data, of the last evaluation."},
    {"fsdpd_fp8_values_total", kCounter, "", "fsdpd_job, rank, class",
     "Nonzero values that rank 0 rounded to FP8, sampled from one row in 64, by class: weights, "
     "inputs, gradients."},
    {"fsdpd_fp8_underflows_total", kCounter, "", "fsdpd_job, rank, class",
     "Values of fsdpd_fp8_values_total that became zero because they were too small relative to "
     "the largest of their row."},
    {"fsdpd_fp8_scale", kGauge, "", "fsdpd_job, rank, class, bound",
     "Minimum and maximum scale of all rows in the last step: the factor that converts FP8 values "
     "back."},
    {"fsdpd_expert_imbalance", kGauge, "", "fsdpd_job, rank",
     "Tokens of a layer's busiest expert over the mean, in the last step; mean over layers."},
    {"fsdpd_expert_capacity_factor", kGauge, "", "fsdpd_job, rank",
     "Expert capacity with expert parallelism, as a multiple of the rows of even routing. It grows "
     "if a step exceeds it, and the step is replayed."},
    {"fsdpd_router_entropy", kGauge, "", "fsdpd_job, rank",
     "Entropy of a token's router scores in nats, in the last step; mean over tokens and layers."},
    {"fsdpd_router_balance_loss", kGauge, "", "fsdpd_job, rank",
     "Load-balancing loss of the last step before it is multiplied by balance_loss, mean over layers."},
    {"fsdpd_router_z_loss", kGauge, "", "fsdpd_job, rank",
     "z-loss of the last step before it is multiplied by z_loss, mean over layers."},
    {"fsdpd_last_step_timestamp_seconds", kGauge, "seconds", "fsdpd_job, rank",
     "When the last step ended, as Unix time."},
    {"fsdpd_steps_left", kGauge, "", "fsdpd_job, rank",
     "0 once the job has completed its last step and writes its results."},
    {"fsdpd_memory_allocated_bytes", kGauge, "bytes", "fsdpd_job, rank",
     "Live tensors and arena at the end of the last step."},
    {"fsdpd_memory_reserved_bytes", kGauge, "bytes", "fsdpd_job, rank",
     "Memory held from the device at the end of the last step."},
    {"fsdpd_memory_peak_bytes", kGauge, "bytes", "fsdpd_job, rank",
     "Highest allocated memory within the last step."},
    {"fsdpd_checkpoints_total", kCounter, "", "fsdpd_job, rank",
     "Checkpoints that were committed in this attempt."},
    {"fsdpd_checkpoint_failures_total", kCounter, "", "fsdpd_job, rank",
     "Checkpoints of this attempt that could not be written."},
    {"fsdpd_checkpoint_stall_seconds_total", kCounter, "seconds", "fsdpd_job, rank",
     "Time that training waited for checkpoints, failed ones too."},
    {"fsdpd_checkpoint_last_step", kGauge, "", "fsdpd_job, rank", "Step of the newest committed checkpoint."},
    {"fsdpd_checkpoint_last_success_timestamp_seconds", kGauge, "seconds", "fsdpd_job, rank",
     "When the newest checkpoint was committed, as Unix time."},
    {"fsdpd_checkpoint_seconds", kGauge, "seconds", "fsdpd_job, rank",
     "From snapshot to commit, of the newest committed checkpoint."},
    {"fsdpd_checkpoint_bytes", kGauge, "bytes", "fsdpd_job, rank",
     "Size of the newest committed checkpoint's files."},
    {"fsdpd_rank_failed", kGauge, "", "fsdpd_job, rank",
     "1 after the rank's process exited with an error or a signal, unless its agent stopped it."},
    {"fsdpd_bad_steps_total", kCounter, "", "fsdpd_job, rank, kind",
     "Steps that train.on_nonfinite or train.on_spike skipped, or at which the attempt ended, by "
     "kind."},
    {"fsdpd_memory_spike_excess_bytes", kGauge, "bytes", "fsdpd_job, rank, instruction",
     "Excess of the last memory spike over the median of earlier steps, or over the plan if that "
     "is more, by the instruction of the peak."},
    {"fsdpd_memory_plan_bytes", kGauge, "bytes", "fsdpd_job, rank, component",
     "Planned memory at the step's peak, by component."},
    {"fsdpd_memory_component_bytes", kGauge, "bytes", "fsdpd_job, rank, component",
     "Memory of each component on rank 0 at the highest sample of a step, measured at most once per "
     "second. The component activations_and_workspace is the sum of activations, workspace, library and "
     "fragmentation in the plan. The component arena_unused is arena memory without a live buffer."},
    {"fsdpd_rank_up", kGauge, "", "fsdpd_job, rank", "1 while the rank's process runs, then 0."},
    {"fsdpd_rank_info", kGauge, "", "fsdpd_job, rank, attempt, fsdpd_node, device",
     "Where a rank runs, and in which attempt; always 1."},

    // Metrics of the agent itself.
    {"fsdpd_agent_slots", kGauge, "", "", "Number of ranks that this node can run."},
    {"fsdpd_agent_ranks", kGauge, "", "", "Rank processes that run on this node."},
    {"fsdpd_agent_connected", kGauge, "", "", "1 while the agent is attached to its coordinator."},
    {"fsdpd_agent_file_stale", kGauge, "", "file",
     "1 while the agent uses an older version of a TLS file because the current one is unreadable "
     "or invalid, so that the agent would not start with it; by flag (--coordinator-ca, "
     "--tls-cert, --tls-key)."},
    {"fsdpd_agent_certificate_expiry_timestamp_seconds", kGauge, "seconds", "file",
     "Expiry of the certificate in the agent's file, as Unix time, by flag (--tls-cert, "
     "--coordinator-ca); of CAs, the first that expires."},
    {"fsdpd_log_loss_seconds_total", kCounter, "seconds", "",
     "Time in which output of ranks was lost: the disk of --work-dir rejected writes, or a running rank's "
     "log was removed."},
    {"fsdpd_unrecorded_steps_total", kCounter, "", "",
     "Steps that are missing from the step records of their job (fsdpctl get --steps): the disk of "
     "--work-dir rejected them or was too slow, or the file was removed."},
    {"fsdpd_agent_internal_errors_total", kCounter, "", "",
     "Exceptions while the agent handled one rank. The agent logs each and continues; the rank's state is "
     "read again a second later."},
    {"fsdpd_hangs_total", kCounter, "", "",
     "Attempts that were stopped because they made no progress, with a rank of this node as the "
     "cause (rank 0 if no rank was)."},
    {"fsdpd_build_info", kGauge, "", "version", "The agent's version; always 1."},
    {"fsdpd_restarts_total", kCounter, "", "fsdpd_job",
     "Launches of the job after its first, for any reason: its attempt number minus one. The "
     "coordinator's fsdpd_job_restarts_total counts those after failures, of all jobs by cause."},
    {"fsdpd_rank_failures_total", kCounter, "", "cause",
     "Ranks that failed here before any other rank of their attempt on this node, by cause as "
     "reported by the rank or the agent; process if it is unknown."},

    // Metrics per GPU of the agent, from its driver. fsdpd_job and rank are empty while no rank runs on it.
    {"fsdpd_gpu_power_watts", kGauge, "watts", "fsdpd_node, device, fsdpd_job, rank",
     "Power of the whole GPU board, averaged over the last second or less."},
    {"fsdpd_gpu_energy_joules_total", kCounter, "joules", "fsdpd_node, device",
     "Energy of the whole GPU board since its driver was loaded."},
    {"fsdpd_gpu_sm_clock_hertz", kGauge, "hertz", "fsdpd_node, device, fsdpd_job, rank",
     "Current clock rate of the multiprocessors."},
    {"fsdpd_gpu_temperature_celsius", kGauge, "celsius", "fsdpd_node, device",
     "Temperature of the GPU chip."},
    {"fsdpd_gpu_xid_errors_total", kCounter, "", "fsdpd_node, device",
     "XID errors that the driver reported since the agent's start, without errors that programs "
     "cause."},
    {"fsdpd_gpu_memory_used_bytes", kGauge, "bytes", "fsdpd_node, device, fsdpd_job, rank",
     "GPU memory in use, by all processes and the driver."},
    {"fsdpd_gpu_memory_outside_bytes", kGauge, "bytes", "fsdpd_node, device, fsdpd_job, rank",
     "GPU memory in use outside of its rank's allocator and arena: CUDA, NCCL, the driver, other "
     "processes."},
    {"fsdpd_gpu_allocator_retries_total", kCounter, "", "fsdpd_node, device, fsdpd_job, rank",
     "Times that its rank's allocator returned all cached memory to the GPU and retried."},
    {"fsdpd_gpu_out_of_memory_total", kCounter, "", "fsdpd_node, device, fsdpd_job, rank",
     "Allocations of its rank that failed for lack of memory."},
    {"fsdpd_gpu_step_energy_joules", kGauge, "joules", "fsdpd_node, device, fsdpd_job, rank",
     "Energy of the whole GPU board during its rank's last step."},
    {"fsdpd_gpu_step_sm_clock_hertz", kGauge, "hertz", "fsdpd_node, device, fsdpd_job, rank",
     "Mean clock rate of the multiprocessors during its rank's last step."},
    {"fsdpd_gpu_slowdown_seconds_total", kCounter, "seconds", "fsdpd_node, device, reason",
     "Time that the clock rate was reduced since the agent's start, by reason."},
    {"fsdpd_gpu_ecc_errors_total", kCounter, "", "fsdpd_node, device, kind",
     "ECC errors of GPU memory since its driver was loaded, by kind."},
    {"fsdpd_gpu_memory_bytes", kGauge, "bytes", "fsdpd_node, device, fsdpd_job, rank",
     "Total memory of the GPU."},
};

}  // namespace

absl::Span<const Metric> AgentMetrics() { return kTable; }

}  // namespace fsdpd
