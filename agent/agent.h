// The agent of one node: its parts, from start to end. What flows between them is agent_flow.h's:
//
//   coordinator --Launch, Stop, Trace, values, ReadLogs--> CoordinatorLink
//     --> RankSupervisor, LogKeeper
//   ranks --started, steps, saved, traced, finished, store--> RankSupervisor
//     --> MetricsExporter, CoordinatorLink
//
//   Start -> (Refused?) -> Shutdown -> destroy
//
// Thread safety: public methods from one thread; `refused` is called on another.
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
#include "agent/coordinator_link.h"
#include "agent/device_probe.h"
#include "agent/gpu_watch.h"
#include "agent/job_directories.h"
#include "agent/log_keeper.h"
#include "agent/metrics_exporter.h"
#include "agent/rank_supervisor.h"
#include "base/metrics_server.h"

namespace fsdpd {

struct AgentOptions {
  std::string coordinator;  // HOST:PORT, or several with commas
  std::string node;         // Unique among the coordinator's nodes.
  TlsFiles tls;             // Of the way to the coordinator; not given: plaintext.
  DeviceOffer offer;
  // Asked for the memory at every registration; without it, and where it fails, the offer's stands.
  std::function<absl::StatusOr<DeviceOffer>()> probe;
  std::string metrics_listen = "127.0.0.1:0";
  std::string work_dir;  // Made when it is not there.
  std::string rank_binary;
  std::string bind_address = "127.0.0.1";     // Where peers on other nodes reach this one's ranks.
  absl::Duration grace = absl::Seconds(5);    // What ranks have to leave, when a Stop names no time.
  std::set<std::string> allowed_env;          // Patterns of --allow-env (base/rank_env.h).
  std::vector<std::string> plugin_dirs;       // Of which jobs' plug-ins are loaded; none: no plug-in is.
  std::vector<std::string> path_roots;        // Below which jobs' paths lie; none: wherever they are.
  std::map<std::string, std::string> labels;  // What jobs choose nodes by.
  std::string nvlink_domain;                  // Whose nodes reach each other's GPUs by NVLink; "": none.
  JobDirectoriesOptions directories;          // Which logs of jobs stay.
  int64_t max_log_bytes = kMaxLogBytes;       // Of a rank's log of an attempt.
};

class Agent {
 public:
  // `refused`: the coordinator does not want this node, for the reason given; the agent is of no use.
  static absl::StatusOr<std::unique_ptr<Agent>> Start(AgentOptions options,
                                                      std::function<void(const absl::Status&)> refused);
  ~Agent();  // Kills what still runs.

  const std::string& metrics_endpoint() const { return metrics_server_->endpoint(); }

  // Stops all ranks; Stopped() says when nothing is left of them. A second call with a shorter grace shortens
  // it.
  void StopRanks(absl::Duration grace) { supervisor_->StopAll(grace); }
  bool Stopped() { return supervisor_->Idle(); }

  // Nothing is left that the coordinator should know: it may be away. Then what is left is on disk when this
  // returns, for the next agent of the work dir to tell (undelivered.h): who ends this one may not wait.
  bool Told() { return flow_->Told(); }

  // Tells the coordinator what is still to be told, keeps the rest for the next agent, and leaves.
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
  std::shared_ptr<GpuWatch> gpus_;  // Null: no GPUs are offered.
  // In the order in which they may call each other; the last goes first.
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
