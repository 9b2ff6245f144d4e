#include "coordinator/metrics/coordinator_metrics.h"

namespace fsdpd {
namespace {

constexpr MetricKind kCounter = MetricKind::kCounter, kGauge = MetricKind::kGauge,
                     kHistogram = MetricKind::kHistogram;

constexpr Metric kTable[] = {
    // Metrics of every coordinator, leader or standby.
    {"fsdpd_coordinator_build_info", kGauge, "", "version", "Version of the coordinator; always 1."},
    {"fsdpd_coordinator_leader", kGauge, "", "",
     "1 if this coordinator is the leader, 0 if it is a standby."},
    {"fsdpd_coordinator_file_stale", kGauge, "", "file",
     "1 while the coordinator uses an older version of a file because the file is unreadable or invalid, "
     "by flag (--tokens, --revoked-certs, --quotas, --tls-cert, --tls-key, --tls-client-ca, --etcd-cert, "
     "--etcd-key, --etcd-ca)."},
    {"fsdpd_coordinator_certificate_expiry_timestamp_seconds", kGauge, "", "file",
     "Expiry of the certificate that the coordinator uses, as Unix time, by flag of its file; of CAs, the "
     "first that expires."},
    {"fsdpd_rpc_seconds", kHistogram, "seconds", "method, code",
     "Latency of unary calls of the public API, by status code."},
    {"fsdpd_stream_calls_total", kCounter, "", "method, code",
     "Streams of the public API that ended, by status code."},
    {"fsdpd_open_streams", kGauge, "", "method", "Open streams of the public API."},
    {"fsdpd_revoked_certificates", kGauge, "", "",
     "Serial numbers in the file of --revoked-certs; 0 without one."},
    {"fsdpd_audit_lines_lost_total", kCounter, "", "",
     "Lines that could not be written to the file of --audit-log; 0 without one."},

    // Activity since the start of the process.
    {"fsdpd_submits_total", kCounter, "", "outcome",
     "Submits of jobs by outcome: accepted, repeated (same request id), refused (invalid spec), or failed."},
    {"fsdpd_submit_violations_total", kCounter, "", "rule", "Violations in rejected submits, by rule."},
    {"fsdpd_agent_messages_rejected_total", kCounter, "", "kind",
     "Rejected messages of agents: about a job that is not placed on the node, not requested, or invalid; "
     "and streams without Register or over the limit of a certificate."},
    {"fsdpd_revoked_agent_streams_total", kCounter, "", "",
     "Streams of agents that were rejected or closed because their certificate is revoked."},
    {"fsdpd_job_transitions_total", kCounter, "", "to", "State transitions of jobs, by new state."},
    {"fsdpd_job_failures_total", kCounter, "", "cause", "Failed attempts, by cause."},
    {"fsdpd_job_restarts_total", kCounter, "", "cause, mode",
     "Launches after a failed attempt, by its cause and by mode: in_place on the same nodes, moved to "
     "other nodes, or resized to another number of ranks. The agents' fsdpd_restarts_total also counts "
     "launches after pauses."},
    {"fsdpd_queue_wait_seconds", kHistogram, "seconds", "",
     "Time in the queue of launched jobs, including preflights."},
    {"fsdpd_recovery_seconds", kHistogram, "seconds", "phase",
     "Time to recover from a failed attempt, by phase: stop of its ranks, queue (backoff, agents and "
     "slots), preflight of nodes, start of ranks, load of a checkpoint, and replay of lost steps. Replay is "
     "0 "
     "if no steps were lost, and ends early at another failure, a pause or a cancel."},
    {"fsdpd_store_seconds", kHistogram, "seconds", "operation",
     "Latency of operations of the state store, including disk or etcd."},
    {"fsdpd_store_errors_total", kCounter, "", "operation",
     "Operations of the state store that failed because of the disk or etcd, including retries. Writes of a "
     "coordinator that lost leadership are not counted."},
    {"fsdpd_tick_seconds", kHistogram, "seconds", "",
     "Duration of a tick of the reconciler, the only thread that changes jobs."},

    // Current state, exported by the leader only.
    {"fsdpd_coordinator_generation", kGauge, "", "",
     "Generation of the leader. It increases with each leader that uses the same state."},
    {"fsdpd_jobs", kGauge, "", "state", "Jobs that have not ended, by state."},
    {"fsdpd_job_seconds", kGauge, "seconds", "fsdpd_job, cause",
     "Goodput ledger of a launched job that has not ended: its wall-clock time since admission, by cause. "
     "A gauge, because reports move time between causes."},
    {"fsdpd_unlisted_jobs", kGauge, "", "",
     "Launched jobs without their own series, because there are too many."},
    {"fsdpd_job_slowest_rank_score", kGauge, "", "fsdpd_job, rank, fsdpd_node",
     "Straggler of a running job: compute time per step of its slowest rank over the median of the other "
     "ranks of its pipeline stage, over about half a minute. Only while it is slower than the median."},
    {"fsdpd_job_predicted_step_seconds", kGauge, "seconds", "fsdpd_job, part",
     "Predicted step time of a launched job with the profile cpu or h200, by part: compute, exposed "
     "communication and the rest add up to the step time."},
    {"fsdpd_job_predicted_mfu_ratio", kGauge, "", "fsdpd_job",
     "Predicted model FLOPs utilization (MFU): the model's FLOPs in a step over the peak FLOPs of the "
     "devices in the profile. FP8 products count with the bf16 peak."},
    {"fsdpd_job_mfu_ratio", kGauge, "", "fsdpd_job",
     "Model FLOPs utilization (MFU) of a running job, from the time of its newest step on rank 0."},
    {"fsdpd_job_failed_attempts", kGauge, "", "fsdpd_job, cause",
     "Failed attempts of a launched job that has not ended, by cause: of the newest 16."},
    {"fsdpd_all_jobs_seconds", kGauge, "seconds", "cause",
     "Sum of fsdpd_job_seconds over all jobs that have not ended, launched or not."},
    {"fsdpd_agents", kGauge, "", "state",
     "Known agents by state: ready, not-ready (may reconnect), lost, or left (shut down gracefully)."},
    {"fsdpd_agents_cordoned", kGauge, "", "", "Cordoned nodes, connected or not."},
    {"fsdpd_cordoned_node_waiting_jobs", kGauge, "", "fsdpd_node",
     "Queued jobs that could be placed if all cordoned nodes with the device type of this node were "
     "uncordoned, by cordoned node."},
    {"fsdpd_agent_heartbeat_age_seconds", kGauge, "seconds", "",
     "Time since the last message of the connected agent that has been silent the longest."},
    {"fsdpd_slots", kGauge, "", "state", "Slots of connected agents: free or held."},
    {"fsdpd_state_bytes", kGauge, "bytes", "",
     "Size of the files of the state store. For etcd, use etcd's own metrics."},
    {"fsdpd_events_total", kCounter, "", "",
     "Events of jobs and nodes (fsdpctl events) since the state was created, including deleted ones."},
    {"fsdpd_reconciler_queue_length", kGauge, "", "",
     "Messages of clients and agents that wait for the reconciler."},
    {"fsdpd_watch_updates_dropped_total", kCounter, "", "",
     "Updates that were dropped because a watcher reads too slowly."},
};

}  // namespace

absl::Span<const Metric> CoordinatorMetrics() { return kTable; }

}  // namespace fsdpd
