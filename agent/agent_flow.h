// What flows between the parts of an agent, and nothing else: it starts no part and owns none. Down:
// Received() gives launches and stops to the supervisor. Up: what the supervisor says of ranks goes to
// /metrics and to the coordinator. It also owns what becomes of what an agent that ends could not tell
// (undelivered.h). Of ranks that measure the node nothing goes either way: that is agent/preflight.h's.
//
// Which parts there are, and their order of life, is agent.h's; the simulation of tests/sim has some of them.
//
// Thread safety: as of the interfaces it implements; Told() and Leave() from one thread.
#pragma once

#include <functional>
#include <map>
#include <string>

#include "agent/compute_times.h"
#include "agent/gpu_watch.h"
#include "agent/job_directories.h"
#include "agent/log_keeper.h"
#include "agent/metrics_exporter.h"
#include "agent/preflight.h"
#include "agent/rank_supervisor.h"
#include "agent/step_records.h"
#include "agent/uplink.h"
#include "base/clock.h"

namespace fsdpd {

class AgentFlow : public RankEvents, public UplinkHandler {
 public:
  struct Options {
    std::string node;
    std::string work_dir;
    v1::Device device = v1::DEVICE_CPU;
    std::function<v1::Register()> about;  // The node as it is now, without what it hosts.
    std::function<void(const absl::Status&)> refused;
    Clock* clock = Clock::Real();
  };
  // All but the link, the supervisor and the metrics may be null: then there is nothing of the kind.
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

  // Before anything flows.
  void Connect(const Parts& parts) { parts_ = parts; }
  // What an agent before left in the work dir is handed to the link.
  void TellWhatWasKept();

  // Nothing is left that the coordinator should know: it may be away. Then what is left is on disk when this
  // returns, for the next agent of the work dir to tell: who ends this one may not wait.
  bool Told();
  // The link has ended: the rest is kept for the next agent.
  void Leave();

 private:
  void Keep(const std::vector<v1::AgentMessage>& undelivered);
  void TellComputeTimes(const RankId& id, int world, const v1::StepReport& report);

  // RankEvents, on the supervisor's thread.
  void RankLaunched(const RankId& id, const v1::RankLaunch& launch, const v1::MemoryPlan& planned) override;
  void LaunchAcknowledged(const RankId& first) override;
  void RankReady(const RankId& id, const v1::RankStarted& started) override;
  void RankStepped(const RankId& id, int world, const v1::StepReport& report) override;
  void RankCourse(const RankId& id, const v1::StepCourse& course) override;
  void CheckpointSaved(const RankId& id, const v1::SavedCheckpoint& saved) override;
  void RankTraced(const RankId& id, const v1::StepTraced& traced) override;
  void RankMeasured(const RankId& id, const v1::PreflightDevice& device) override;
  void RankStood(const RankId& id, const std::string& where) override;
  void RankStill(const RankId& id, const v1::RankStill& still) override;
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
  bool kept_ = false;  // In the work dir: what is undelivered.
  // The supervisor's thread's.
  std::map<RankId, int> rank_devices_;  // Of those that run.
  ComputeTimes compute_times_;
};

}  // namespace fsdpd
