// The agent of one node: owns the agent's components and their order of construction and destruction. The
// data flow between them is in agent_flow.h:
//
//   coordinator --Launch, Stop, Trace, rendezvous values, ReadLogs--> CoordinatorLink
//     --> RankSupervisor, LogKeeper
//   ranks --started, steps, saved, traced, finished, store--> RankSupervisor
//     --> MetricsExporter, CoordinatorLink
//
//   Start -> (Refused?) -> Shutdown -> destroy
//
// Thread safety: public methods from one thread; `refused` is called on a thread of the agent.
#pragma once

#include <absl/status/statusor.h>
#include <absl/time/time.h>

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "agent/agent_flow.h"
#include "agent/gpu/device_probe.h"
#include "agent/gpu/gpu_watch.h"
#include "agent/link/coordinator_link.h"
#include "agent/logs/job_directories.h"
#include "agent/logs/log_keeper.h"
#include "agent/metrics/metrics_exporter.h"
#include "agent/ranks/rank_supervisor.h"
#include "base/net/metrics_server.h"

namespace fsdpd {

struct AgentOptions {
  std::string coordinator;  // HOST:PORT, or a comma-separated list.
  std::string node;         // Unique among the coordinator's nodes.
  TlsFiles tls;             // TLS files for the coordinator connection; not given: plaintext.
  DeviceOffer offer;
  // Called at every registration to probe the memory again. Without it, or if it fails, the memory of `offer`
  // is registered.
  std::function<absl::StatusOr<DeviceOffer>()> probe;
  std::string metrics_listen = "127.0.0.1:0";
  std::string work_dir;  // Created if it does not exist.
  std::string rank_binary;
  // Address at which ranks on other nodes reach the ranks of this node.
  std::string bind_address = "127.0.0.1";
  absl::Duration grace = absl::Seconds(5);  // Time for ranks to exit, for a Stop without a grace period.
  std::set<std::string> allowed_env;        // Patterns of --allow-env (base/spec_text/rank_env.h).
  std::vector<std::string> plugin_dirs;     // Directories from which plug-ins may be loaded; empty: none.
  std::vector<std::string> path_roots;  // Directories that must contain the paths of jobs; empty: anywhere.
  std::map<std::string, std::string> labels;  // Matched by resources.node_selector.
  std::string nvlink_domain;                  // Nodes of one domain share NVLink; "": none.
  JobDirectoriesOptions directories;          // Retention of job directories.
  int64_t max_log_bytes = kMaxLogBytes;       // Limit per rank log of one attempt.
};

class Agent {
 public:
  // `refused`: the coordinator rejected this node for the given reason; the caller should exit.
  static absl::StatusOr<std::unique_ptr<Agent>> Start(AgentOptions options,
                                                      std::function<void(const absl::Status&)> refused);
  ~Agent();  // Kills all remaining ranks.

  const std::string& metrics_endpoint() const { return metrics_server_->endpoint(); }

  // Stops all ranks; Stopped() returns true once all of their processes are gone. A second call with a
  // shorter grace period shortens it.
  void StopRanks(absl::Duration grace) { supervisor_->StopAll(grace); }
  bool Stopped() { return supervisor_->Idle(); }

  // Returns whether every message that must reach the coordinator was delivered. If the coordinator is away,
  // the undelivered messages are on disk when this returns (undelivered.h), and the next agent with this work
  // directory sends them: the process may be killed before the coordinator comes back.
  bool AllDelivered() { return flow_->AllDelivered(); }

  // Flushes the remaining messages to the coordinator, stores the undelivered ones for the next agent, and
  // disconnects.
  void Detach();

 private:
  Agent(AgentOptions options, std::function<void(const absl::Status&)> refused);
  absl::Status StartParts();
  RankSupervisor::Options RankOptions(InternalErrors errors) const;
  v1::Register About() const;
  DeviceOffer OfferNow() const;

  const AgentOptions options_;
  const std::string instance_;
  const std::function<void(const absl::Status&)> refused_;
  UniqueFd work_dir_lock_;
  std::vector<PathRoot> plugin_dirs_, path_roots_;
  const std::shared_ptr<MetricsExporter> metrics_;
  std::shared_ptr<GpuWatch> gpus_;  // Null if this node offers no GPUs.
  // Declared in the order in which they may call each other, so the last is destroyed first.
  std::unique_ptr<MetricsServer> metrics_server_;
  std::unique_ptr<AgentFlow> flow_;
  std::unique_ptr<CoordinatorLink> link_;
  std::unique_ptr<StepRecords> steps_;
  std::unique_ptr<LogKeeper> logs_;
  std::unique_ptr<Preflight> preflight_;
  std::unique_ptr<RankSupervisor> supervisor_;
  std::unique_ptr<JobDirectories> directories_;
};

}  // namespace fsdpd
