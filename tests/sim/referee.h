// Invariant checker of a run. It observes from outside: what the store was given and contains, what watchers
// of the coordinator are shown, what clients were answered, and which ranks are truly alive. Its rules are
// implemented independently and never call the code under test.
//
// The first violation ends the run (World::ReportViolation).
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "coordinator/job/job_watch.h"
#include "coordinator/nodes/node_registry.h"
#include "coordinator/schedule/quota.h"
#include "coordinator/store/state_store.h"
#include "tests/sim/accounts.h"
#include "tests/sim/attempts.h"
#include "tests/sim/ranks.h"
#include "tests/sim/world.h"

namespace fsdpd::sim {

class Referee {
 public:
  Referee(World* world, std::map<std::string, int> slots)
      : world_(world), slots_(std::move(slots)), accounts_(world), attempts_(world) {}
  void Watch(const Ranks* ranks) {
    ranks_ = ranks;
    attempts_.Watch(ranks);
  }

  // --- Coordinator ---
  void CoordinatorBegins(StateStore* store, bool counted, const RanksByProject& quotas);
  void CheckNodes(const std::vector<NodeView>& known);  // Once it has loaded its store.
  void CoordinatorEnds();
  void DateSet() { accounts_.DateSet(); }
  void StreamOpened(const std::string& node, int64_t stream_generation);
  void Heard(const std::string& node);
  void AfterTick(JobBoard* board);

  // --- Store. `sure`: false when the machine died meanwhile. ---
  void Stored(const v1::Job& job, bool sure);
  void Deleted(const std::string& id, bool sure);
  void WroteOther() { counted_ = true; }  // Another write succeeded.
  void WriteFailed() { all_written_ = false; }
  void StoredNodes(const v1::ListNodesResponse& changed, const std::vector<std::string>& gone);

  // --- Ranks ---
  void Begun(const RankLife& rank);

  // --- Clients: what they ask, and what they are answered ---
  void AsksFor(const std::string& id, const std::string& what);
  void Submitted(const std::string& request_id, const v1::Job& job);
  void Answered(const std::string& what, const v1::Job& job);
  void Cordoned(const std::string& node, bool on) {
    cordoned_.erase(node);
    if (on) cordoned_.insert(node);
  }

  // Ranks on this node may be asked to leave from now on.
  void AsksToDrain(const std::string& node) { drained_.insert(node); }
  void ReportedEmpty(const std::string& node);

  bool IsDeleted(const std::string& id) const { return Has(asked_, id, "delete"); }
  std::vector<std::string> Accepted() const;

 private:
  struct Copy {
    std::optional<std::string> known;                 // Stored bytes; nullopt: not stored.
    std::vector<std::optional<std::string>> perhaps;  // Alternatives after a write of unknown result.
    int launched = 0;                                 // Newest launched attempt.
  };
  using Asked = std::map<std::string, std::set<std::string>>;
  static bool Has(const Asked& asked, const std::string& id, const std::string& what);

  // Stored fields of a job that checks of other jobs need.
  struct Known {
    v1::JobState state = v1::JOB_STATE_UNSPECIFIED;
    std::string project;
    int64_t priority = 0, ranks = 0;
    std::vector<std::string> nodes;
  };
  // A job that is being preempted.
  struct Preempted {
    int attempt = 0;
    int counted = 0;  // Counted attempts, including this one.
  };

  void CheckStore(StateStore* store);
  void Know(const v1::Job& job);
  void Forget(const std::string& id);
  void CheckPreemption(const v1::Job& job);
  void CheckSharing(const v1::Job& job);
  void CheckShown(const v1::Job& job);
  void CheckLaunch(const v1::Job& job);
  void CheckEnd(const v1::Job& job);
  bool Silent(const std::string& node) const;

  World* const world_;
  const std::map<std::string, int> slots_;
  Accounts accounts_;
  Attempts attempts_;
  const Ranks* ranks_ = nullptr;
  std::map<std::string, Copy> copies_;
  std::map<std::string, v1::JobState> shown_;
  std::map<std::string, int64_t> revisions_;
  std::map<std::string, std::shared_ptr<JobWatch>> watches_;
  Asked asked_;                                  // Requests ever made.
  std::set<std::string> cancelled_, held_;       // Acknowledged, and not reverted by a later request.
  std::map<std::string, std::string> requests_;  // Request id -> job id.
  std::set<std::string> cordoned_;
  std::set<std::string> drained_;  // Drains ever requested.
  std::set<std::pair<AttemptId, int>> begun_;
  std::map<AttemptId, std::set<std::string>> silent_at_launch_;
  std::map<std::string, absl::Time> heard_;  // In this run of the coordinator.
  absl::Time life_began_;
  int64_t newest_generation_ = 0;
  int64_t generation_before_ = 0;  // Before this run.
  bool counted_ = true;            // Its generation was stored.

  RanksByProject quotas_;
  std::map<std::string, Known> known_;
  std::map<std::string, Preempted> preempted_;
  std::set<std::string> nodes_;  // Names of stored nodes.
  // false once a write failed: the coordinator may know more than the store.
  bool all_written_ = true;
};

// StateStore decorator that reports results of writes to the checker.
class CheckedStore : public StateStore {
 public:
  // `dead`: the machine has died during a call.
  CheckedStore(std::unique_ptr<StateStore> store, Referee* referee, std::function<bool()> dead)
      : store_(std::move(store)), referee_(referee), dead_(std::move(dead)) {}

  int64_t generation() const override { return store_->generation(); }
  const EventLog& events() const override { return store_->events(); }
  absl::StatusOr<std::optional<v1::Job>> FindRequest(const std::string& id,
                                                     const v1::JobSpec& spec) override {
    return store_->FindRequest(id, spec);
  }
  absl::StatusOr<Inserted> Insert(const v1::Job& job) override;
  absl::Status Update(const v1::Job& job) override;
  std::vector<absl::Status> UpdateAll(const std::vector<const v1::Job*>& jobs) override;
  absl::Status Delete(const std::string& id, const Events& news) override;
  absl::StatusOr<std::vector<std::string>> ForgetEnded(const Retention& retention, absl::Time now,
                                                       int limit) override;
  absl::StatusOr<v1::Job> Get(const std::string& id) override { return store_->Get(id); }
  absl::StatusOr<JobPage> List(const JobQuery& query) override { return store_->List(query); }
  absl::StatusOr<std::vector<v1::Job>> LiveJobs() override { return store_->LiveJobs(); }
  absl::Status SetCordon(const std::string& node, const v1::Cordon& cordon, const Events& news) override;
  absl::Status RemoveCordon(const std::string& node, const Events& news) override;
  absl::StatusOr<std::map<std::string, v1::Cordon>> Cordons() override { return store_->Cordons(); }
  absl::Status UpdateNodes(const v1::ListNodesResponse& changed, const std::vector<std::string>& gone,
                           const Events& news) override;
  absl::StatusOr<v1::ListNodesResponse> Nodes() override { return store_->Nodes(); }

 private:
  void Report(const v1::Job& job, const absl::Status& stored);

  const std::unique_ptr<StateStore> store_;
  Referee* const referee_;
  const std::function<bool()> dead_;
};

}  // namespace fsdpd::sim
