// Message routing between the components of an agent. It neither starts nor owns components. Downward,
// Received() passes launches and stops to the supervisor. Upward, events of ranks go to /metrics and to the
// coordinator. It also stores messages that could not be delivered before the agent exits (undelivered.h).
// Events of preflight ranks are not sent to the coordinator; they go to agent/gpu/node_preflight.h.
//
// agent.h defines the components and their lifetimes; the simulation in tests/sim uses a subset.
//
// Thread safety: as for the implemented interfaces; AllDelivered() and StoreRest() from one thread.
#pragma once

#include <functional>
#include <map>
#include <string>

#include "agent/gpu/gpu_watch.h"
#include "agent/gpu/node_preflight.h"
#include "agent/link/uplink.h"
#include "agent/logs/job_directories.h"
#include "agent/logs/log_keeper.h"
#include "agent/logs/step_records.h"
#include "agent/metrics/compute_times.h"
#include "agent/metrics/metrics_exporter.h"
#include "agent/ranks/rank_supervisor.h"
#include "base/clock.h"

namespace fsdpd {

class AgentFlow : public RankEvents, public UplinkHandler {
 public:
  struct Options {
    std::string node;
    std::string work_dir;
    v1::Device device = v1::DEVICE_CPU;
    // Describes the node as it is now, without the attempts that it hosts.
    std::function<v1::Register()> about;
    std::function<void(const absl::Status&)> refused;
    Clock* clock = Clock::Real();
  };
  // `link`, `supervisor` and `metrics` are required. The others may be null, which disables them.
  struct Parts {
    Uplink* link = nullptr;
    RankSupervisor* supervisor = nullptr;
    MetricsExporter* metrics = nullptr;
    LogKeeper* logs = nullptr;
    StepRecords* steps = nullptr;
    JobDirectories* directories = nullptr;
    GpuWatch* gpus = nullptr;
    Preflight* preflight = nullptr;
  };

  explicit AgentFlow(Options options) : options_(std::move(options)) {}

  // Call before any event or message arrives.
  void Connect(const Parts& parts) { parts_ = parts; }
  // Queues the messages that an earlier agent left in the work directory.
  void SendUndelivered();

  // Returns whether every message that must reach the coordinator was delivered. If the coordinator is away,
  // the undelivered messages are on disk when this returns, and the next agent with this work directory sends
  // them: the process may be killed before the coordinator comes back.
  bool AllDelivered();
  // Call after the link was shut down: stores the undelivered messages for the next agent.
  void StoreRest();

 private:
  void Store(const std::vector<v1::AgentMessage>& undelivered);
  void SendComputeTimes(const RankId& id, int world, const v1::StepReport& report);

  // RankEvents, on the supervisor's thread.
  void RankLaunched(const RankId& id, const v1::RankLaunch& launch, const v1::MemoryPlan& planned) override;
  void LaunchAcknowledged(const RankId& first) override;
  void RankReady(const RankId& id, const v1::RankStarted& started) override;
  void RankStepped(const RankId& id, int world, const v1::StepReport& report) override;
  void RankTimeline(const RankId& id, const v1::StepTimeline& timeline) override;
  void CheckpointSaved(const RankId& id, const v1::SavedCheckpoint& saved) override;
  void RankTraced(const RankId& id, const v1::StepTraceResult& traced) override;
  void RankMeasured(const RankId& id, const v1::PreflightDevice& device) override;
  void RankBlockedIn(const RankId& id, const std::string& where) override;
  void RankStalled(const RankId& id, const v1::RankNoProgress& no_progress) override;
  void RankExited(const RankId& id, const v1::RankExit& exit) override;
  void AttemptHung(const AttemptId& id) override;
  void AttemptGone(const AttemptId& id, bool stopped, const v1::FreedMemory& memory) override;
  void StoreSet(const AttemptId& id, const v1::StoreSet& set) override;
  void StoreGet(const AttemptId& id, const std::string& key, int64_t request) override;

  // UplinkHandler, on the link's threads.
  v1::Register Registration() override;
  void Connected(bool connected) override;
  void Received(const v1::CoordinatorMessage& message) override;
  void Refused(const absl::Status& why) override;
  void Revoked() override;

  const Options options_;
  Parts parts_;
  bool stored_ = false;  // The undelivered messages are in the work directory.
  // Used on the thread of the supervisor only.
  std::map<RankId, int> rank_devices_;  // CUDA device of each running rank.
  ComputeTimes compute_times_;
};

}  // namespace fsdpd
