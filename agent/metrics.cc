#include "agent/metrics.h"

namespace fsdpd {
namespace {

constexpr MetricKind kCounter = MetricKind::kCounter, kGauge = MetricKind::kGauge;

constexpr Metric kTable[] = {
    // Per rank, while it runs and for some time after it ended.
    {"fsdpd_steps_total", kCounter, "", "fsdpd_job, rank", "Optimizer steps done in this attempt."},
    {"fsdpd_step_seconds_total", kCounter, "seconds", "fsdpd_job, rank",
     "Wall time of all steps of this attempt."},
    {"fsdpd_tokens_total", kCounter, "", "fsdpd_job, rank", "This rank's share of the tokens trained on."},
    {"fsdpd_compute_seconds_total", kCounter, "seconds", "fsdpd_job, rank",
     "Time that the compute lane was busy."},
    {"fsdpd_exposed_seconds_total", kCounter, "seconds", "fsdpd_job, rank",
     "Time with the compute lane idle and any communication under way."},
    {"fsdpd_data_wait_seconds_total", kCounter, "seconds", "fsdpd_job, rank",
     "Time that the rank's host waited for the tokens of steps before it submitted them."},
    {"fsdpd_skipped_steps_total", kCounter, "", "fsdpd_job, rank",
     "Steps without an update: a gradient was not finite, or a spike."},
    {"fsdpd_memory_spikes_total", kCounter, "", "fsdpd_job, rank",
     "Steps whose peak was over 1.1 times the median of those before, or the plan and any step "
     "before."},
    {"fsdpd_device_mallocs_total", kCounter, "", "fsdpd_job, rank",
     "Times that the rank's process asked its GPU for memory, whichever library did; malloc by "
     "the allocator on CPU ranks."},
    {"fsdpd_device_frees_total", kCounter, "", "fsdpd_job, rank",
     "Times that the rank's process gave its GPU memory back; free by the allocator on CPU "
     "ranks."},
    {"fsdpd_allocations_total", kCounter, "", "fsdpd_job, rank",
     "Allocator requests, served from the cache or not."},
    {"fsdpd_comm_seconds_total", kCounter, "seconds", "fsdpd_job, rank, op",
     "Time that communication lanes were busy, by operation: all_gather, reduce_scatter, all_reduce, of "
     "jobs with replicas outer_reduce and outer_gather, with stages stage."},
    {"fsdpd_comm_exposed_seconds_total", kCounter, "seconds", "fsdpd_job, rank, op",
     "Communication time with the compute lane idle, by operation; what is exposed at the same "
     "time counts for each."},
    {"fsdpd_comm_bytes_total", kCounter, "bytes", "fsdpd_job, rank, op",
     "Bytes that this rank received, by operation."},
    {"fsdpd_copy_engines", kGauge, "", "fsdpd_job, rank",
     "1 where the rank's GPU and its peers' gather by copy engines; 0 where NCCL's kernels do, which "
     "take multiprocessors from compute."},
    {"fsdpd_step_seconds", kGauge, "seconds", "fsdpd_job, rank", "Wall time of the last step."},
    {"fsdpd_loss", kGauge, "", "fsdpd_job, rank", "Mean loss of the last step's global batch."},
    {"fsdpd_grad_norm", kGauge, "", "fsdpd_job, rank",
     "Global gradient norm of the last step, before clipping."},
    {"fsdpd_learning_rate", kGauge, "", "fsdpd_job, rank", "Learning rate of the last step."},
    {"fsdpd_loss_scale", kGauge, "", "fsdpd_job, rank", "Loss scale of the last step; fp16 only."},
    {"fsdpd_validation_loss", kGauge, "", "fsdpd_job, rank",
     "Mean loss over the validation data, of the last evaluation."},
    {"fsdpd_fp8_numbers_total", kCounter, "", "fsdpd_job, rank, class",
     "Numbers other than zero that rank 0 rounded to FP8, of one row in 64, by what they are: weights, "
     "inputs, gradients."},
    {"fsdpd_fp8_flushed_total", kCounter, "", "fsdpd_job, rank, class",
     "Of fsdpd_fp8_numbers_total those that became zero, as they were too small beside the largest of "
     "their row."},
    {"fsdpd_fp8_scale", kGauge, "", "fsdpd_job, rank, class, bound",
     "Least and largest scale of all rows in the last step: the factor that turns FP8 numbers back."},
    {"fsdpd_expert_imbalance", kGauge, "", "fsdpd_job, rank",
     "Tokens of a layer's fullest expert over the mean, in the last step; mean over layers."},
    {"fsdpd_expert_room", kGauge, "", "fsdpd_job, rank",
     "Where ranks have experts among them, for so many times the rows of even routing each has room. It "
     "grows when a step needs more, which is then run again."},
    {"fsdpd_router_entropy", kGauge, "", "fsdpd_job, rank",
     "Entropy of a token's scores in nats, in the last step: mean over tokens and layers."},
    {"fsdpd_router_balance_loss", kGauge, "", "fsdpd_job, rank",
     "Load-balancing loss of the last step before it is multiplied by balance_loss, mean over layers."},
    {"fsdpd_router_z_loss", kGauge, "", "fsdpd_job, rank",
     "z-loss of the last step before it is multiplied by z_loss, mean over layers."},
    {"fsdpd_last_step_timestamp_seconds", kGauge, "seconds", "fsdpd_job, rank",
     "When the last step ended, as Unix time."},
    {"fsdpd_steps_left", kGauge, "", "fsdpd_job, rank",
     "0, once the job has made its last step and its results are being written."},
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
     "1 once the rank's process has ended with an error or a signal, unasked."},
    {"fsdpd_bad_steps_total", kCounter, "", "fsdpd_job, rank, kind",
     "Steps that train.on_nonfinite or train.on_spike skipped, or that the attempt ended by, "
     "by kind."},
    {"fsdpd_memory_spike_excess_bytes", kGauge, "bytes", "fsdpd_job, rank, instruction",
     "How far the peak of the last memory spike was above the median of the steps before, or "
     "above the plan where that is more, by the instruction that it was reached in."},
    {"fsdpd_memory_plan_bytes", kGauge, "bytes", "fsdpd_job, rank, component",
     "Planned memory at the step's peak, by component."},
    {"fsdpd_memory_component_bytes", kGauge, "bytes", "fsdpd_job, rank, component",
     "What rank 0 held of each component when the memory of a step was highest, as measured at most "
     "once a second; activations_and_workspace is what the plan calls activations, workspace, library "
     "and fragmentation, and arena_unused what the arena holds of no live buffer."},
    {"fsdpd_rank_up", kGauge, "", "fsdpd_job, rank", "1 while the rank's process runs, then 0."},
    {"fsdpd_rank_info", kGauge, "", "fsdpd_job, rank, attempt, fsdpd_node, device",
     "Where a rank runs, and in which attempt; always 1."},

    // Of the agent itself.
    {"fsdpd_agent_slots", kGauge, "", "", "Ranks that this node can run at once."},
    {"fsdpd_agent_ranks", kGauge, "", "", "Rank processes that run on this node."},
    {"fsdpd_agent_connected", kGauge, "", "", "1 while the agent is attached to its coordinator."},
    {"fsdpd_agent_file_stale", kGauge, "", "file",
     "1 while the agent uses an older version of a file because the file is unreadable or invalid, so that "
     "it would not start with it; by the file's flag (--coordinator-ca, --tls-cert, --tls-key)."},
    {"fsdpd_agent_certificate_expiry_timestamp_seconds", kGauge, "seconds", "file",
     "When the certificate in the agent's file expires, or has expired, by the file's flag (--tls-cert, "
     "--coordinator-ca); of authorities, the first that expires."},
    {"fsdpd_log_loss_seconds_total", kCounter, "seconds", "",
     "Time in which output of ranks was lost: the disk of --work-dir refused writes, or a running rank's log "
     "was removed."},
    {"fsdpd_unrecorded_steps_total", kCounter, "", "",
     "Steps that are missing from the record of their job (fsdpctl get --steps): the disk of --work-dir "
     "refused them or was too slow, or the file was removed."},
    {"fsdpd_agent_internal_errors_total", kCounter, "", "",
     "Exceptions while the agent handled one rank. The agent logs each and continues; the rank's state is "
     "read again a second later."},
    {"fsdpd_hangs_total", kCounter, "", "",
     "Attempts that were ended since nothing moved any more, with a rank of this node as the "
     "cause (rank 0, where no rank was)."},
    {"fsdpd_build_info", kGauge, "", "version", "The agent's version; always 1."},
    {"fsdpd_restarts_total", kCounter, "", "fsdpd_job",
     "Launches of the job after its first, whatever was the reason: its attempt number less one. Those "
     "after failures, of all jobs by cause, are the coordinator's fsdpd_job_restarts_total."},
    {"fsdpd_rank_failures_total", kCounter, "", "cause",
     "Ranks that failed here, none of their attempt's here before them, by what they or the "
     "agent say of it: process where neither knows more."},

    // Per GPU that the agent offers, as its driver reports. While no rank runs on it, fsdpd_job and rank are
    // empty.
    {"fsdpd_gpu_power_watts", kGauge, "watts", "fsdpd_node, device, fsdpd_job, rank",
     "Power of the whole card, over the last second or less."},
    {"fsdpd_gpu_energy_joules_total", kCounter, "joules", "fsdpd_node, device",
     "Energy of the whole card since its driver was loaded."},
    {"fsdpd_gpu_sm_clock_hertz", kGauge, "hertz", "fsdpd_node, device, fsdpd_job, rank",
     "Clock of the multiprocessors now."},
    {"fsdpd_gpu_temperature_celsius", kGauge, "celsius", "fsdpd_node, device", "Temperature of the chip."},
    {"fsdpd_gpu_xid_errors_total", kCounter, "", "fsdpd_node, device",
     "Errors that the driver told of (XID) since the agent's start, but for those that "
     "programs make."},
    {"fsdpd_gpu_memory_used_bytes", kGauge, "bytes", "fsdpd_node, device, fsdpd_job, rank",
     "Memory of the card in use, by all processes and the driver."},
    {"fsdpd_gpu_memory_outside_bytes", kGauge, "bytes", "fsdpd_node, device, fsdpd_job, rank",
     "Memory in use beside what its rank's allocator and arena hold: CUDA, NCCL, the driver, "
     "others."},
    {"fsdpd_gpu_allocator_retries_total", kCounter, "", "fsdpd_node, device, fsdpd_job, rank",
     "Times that its rank's allocator gave all it had back to the card and asked again."},
    {"fsdpd_gpu_out_of_memory_total", kCounter, "", "fsdpd_node, device, fsdpd_job, rank",
     "Requests of its rank that failed for lack of memory."},
    {"fsdpd_gpu_step_energy_joules", kGauge, "joules", "fsdpd_node, device, fsdpd_job, rank",
     "Energy of the whole card in its rank's last step."},
    {"fsdpd_gpu_step_sm_clock_hertz", kGauge, "hertz", "fsdpd_node, device, fsdpd_job, rank",
     "Mean clock of the multiprocessors in its rank's last step."},
    {"fsdpd_gpu_slowdown_seconds_total", kCounter, "seconds", "fsdpd_node, device, reason",
     "Time that the clock was held down since the agent's start, by what held it."},
    {"fsdpd_gpu_ecc_errors_total", kCounter, "", "fsdpd_node, device, kind",
     "Errors of the card's memories since its driver was loaded, by kind."},
    {"fsdpd_gpu_memory_bytes", kGauge, "bytes", "fsdpd_node, device, fsdpd_job, rank", "Memory of the card."},
};

}  // namespace

absl::Span<const Metric> AgentMetrics() { return kTable; }

}  // namespace fsdpd
