#include "coordinator/metrics.h"

namespace fsdpd {
namespace {

constexpr MetricKind kCounter = MetricKind::kCounter, kGauge = MetricKind::kGauge,
                     kHistogram = MetricKind::kHistogram;

constexpr Metric kTable[] = {
    // Of every coordinator, whether it leads or stands by.
    {"fsdpd_coordinator_build_info", kGauge, "", "version", "The coordinator's version; always 1."},
    {"fsdpd_coordinator_leader", kGauge, "", "", "1 while this coordinator leads; 0 while it stands by."},
    {"fsdpd_coordinator_file_stale", kGauge, "", "file",
     "1 while the coordinator uses an older version of a file because the file is unreadable or invalid; by "
     "the file's flag (--tokens, --revoked-certs, --quotas, --tls-cert, --tls-key, --tls-client-ca, "
     "--etcd-cert, --etcd-key, --etcd-ca)."},
    {"fsdpd_coordinator_certificate_expiry_timestamp_seconds", kGauge, "", "file",
     "When the certificate that the coordinator uses expires, by the file's flag; of authorities, the first "
     "that "
     "expires."},
    {"fsdpd_rpc_seconds", kHistogram, "seconds", "method, code",
     "Time that calls of the public API took, streams left out, by what they were answered."},
    {"fsdpd_stream_calls_total", kCounter, "", "method, code",
     "Streams of the public API that have ended, by what they ended with."},
    {"fsdpd_open_streams", kGauge, "", "method", "Streams of the public API that are open."},
    {"fsdpd_revoked_certificates", kGauge, "", "",
     "Serial numbers in the file of --revoked-certs; 0 without one."},
    {"fsdpd_audit_lines_lost_total", kCounter, "", "",
     "Lines that could not be written to the file of --audit-log; 0 without one."},

    // Of what it did since it started.
    {"fsdpd_submits_total", kCounter, "", "outcome",
     "Jobs that were submitted: accepted, the same request again, refused for their spec, or failed."},
    {"fsdpd_refusals_total", kCounter, "", "rule", "Faults for which submits were refused, by rule."},
    {"fsdpd_agent_messages_refused_total", kCounter, "", "kind",
     "Messages of agents that were refused: about a job not placed on that node, not requested or invalid; "
     "and streams without Register or beyond a certificate's share."},
    {"fsdpd_revoked_agent_streams_total", kCounter, "", "",
     "Agents' streams that were refused or closed because their certificate is revoked."},
    {"fsdpd_job_transitions_total", kCounter, "", "to", "Changes of jobs' states, by the new one."},
    {"fsdpd_job_failures_total", kCounter, "", "cause", "Attempts that failed, by cause."},
    {"fsdpd_job_restarts_total", kCounter, "", "cause, mode",
     "Launches after an attempt that failed, by its cause, and by where the new one is: in_place on the "
     "same nodes, moved to others, or resized to another number of ranks. What agents tell as "
     "fsdpd_restarts_total is a job's own number, after pauses too."},
    {"fsdpd_queue_wait_seconds", kHistogram, "seconds", "",
     "How long jobs that were launched had been queued, nodes' measurements with it."},
    {"fsdpd_recovery_seconds", kHistogram, "seconds", "phase",
     "What failures of attempts cost once they are known. From one until all ranks of the next attempt were "
     "up: its ranks left (stop), the job waited for its next try, for agents to come back and for slots "
     "(queue), nodes were measured (preflight), ranks came up (start), but for reading a checkpoint (load). "
     "From then on steps that were lost were made again (replay): 0 where none were, and until then where "
     "another failure, a pause or a cancel broke it off."},
    {"fsdpd_store_seconds", kHistogram, "seconds", "operation",
     "Time that the state's store took, disk or etcd with it."},
    {"fsdpd_store_errors_total", kCounter, "", "operation",
     "Operations of the store that failed for the disk or etcd."},
    {"fsdpd_tick_seconds", kHistogram, "seconds", "",
     "Time that the one thread that changes jobs took for a turn."},

    // Of what it knows now, while it leads.
    {"fsdpd_coordinator_generation", kGauge, "", "",
     "Which life of the coordinator this is, over all that share its state; grows."},
    {"fsdpd_jobs", kGauge, "", "state", "Jobs that have not ended."},
    {"fsdpd_job_seconds", kGauge, "seconds", "fsdpd_job, cause",
     "Where the time of a launched job that has not ended went since its admission: all causes together are "
     "that time. A gauge, as reports move time from one cause to another."},
    {"fsdpd_unlisted_jobs", kGauge, "", "",
     "Launched jobs without fsdpd_job_seconds of their own, as there are so many."},
    {"fsdpd_job_slowest_rank_score", kGauge, "", "fsdpd_job, rank, fsdpd_node",
     "Of a running job the rank whose compute lane is busy for longest in a step: for how many times as long "
     "as "
     "that of the median of the others of its pipeline stage, over half a minute or so. Only where it is "
     "longer."},
    {"fsdpd_job_predicted_step_seconds", kGauge, "seconds", "fsdpd_job, part",
     "What a step of a launched job was predicted to take by its plan, with the profile cpu or h200: "
     "compute, "
     "exposed communication and the rest together are the step."},
    {"fsdpd_job_predicted_mfu_ratio", kGauge, "", "fsdpd_job",
     "The model's FLOPs in such a step over what the devices could compute in it at their peak, by the "
     "profile; with FP8 products at the bf16 peak."},
    {"fsdpd_job_mfu_ratio", kGauge, "", "fsdpd_job",
     "The same of a running job by the time that its newest step took on rank 0."},
    {"fsdpd_job_failed_attempts", kGauge, "", "fsdpd_job, cause",
     "Attempts of a launched job that has not ended that failed, by cause: of the newest 16 that did."},
    {"fsdpd_all_jobs_seconds", kGauge, "seconds", "cause",
     "fsdpd_job_seconds of all jobs that have not ended, launched or not, together."},
    {"fsdpd_agents", kGauge, "", "state",
     "Known agents by state: ready, not-ready (may reconnect), lost, or left (stopped in order)."},
    {"fsdpd_agents_cordoned", kGauge, "", "", "Nodes that take no new jobs, connected or not."},
    {"fsdpd_cordoned_node_waiting_jobs", kGauge, "", "fsdpd_node",
     "Jobs that wait in the queue and would fit if cordoned nodes of this node's kind were open; by cordoned "
     "node."},
    {"fsdpd_agent_heartbeat_age_seconds", kGauge, "seconds", "",
     "How long ago the connected agent was heard that was silent for longest."},
    {"fsdpd_slots", kGauge, "", "state", "Slots of connected agents: free or held."},
    {"fsdpd_state_bytes", kGauge, "bytes", "",
     "Size of the files that the state is in. etcd tells of its own."},
    {"fsdpd_events_total", kCounter, "", "",
     "Events of jobs and nodes (fsdpctl events) since the state began, kept or forgotten."},
    {"fsdpd_waiting_events", kGauge, "", "",
     "What clients and agents said that the one thread that changes jobs has not taken yet."},
    {"fsdpd_watch_updates_dropped_total", kCounter, "", "",
     "Updates that watchers did not get, as they read too slowly."},
};

}  // namespace

absl::Span<const Metric> CoordinatorMetrics() { return kTable; }

}  // namespace fsdpd
