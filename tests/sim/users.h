// Simulated users: they submit jobs and make requests. Calls are lost before they arrive or before they are
// answered, and are repeated. The invariant checker gets the replies.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "proto/fsdpd/v1/coordinator.pb.h"
#include "tests/sim/coordinator.h"
#include "tests/sim/referee.h"
#include "tests/sim/world.h"

namespace fsdpd::sim {

class Users {
 public:
  Users(World* world, Coordinator* coordinator, Referee* referee, std::vector<std::string> nodes)
      : world_(world), coordinator_(coordinator), referee_(referee), nodes_(std::move(nodes)) {}

  void SubmitJobs(int jobs, absl::Duration within);
  void MakeRandomRequest();
  // From now on, resumes all held jobs and lifts all cordons.
  void ResumeAll();

  bool all_answered() const { return open_ == 0; }
  // Why accepted jobs have not all finished, "" if they have. Ignores deleted jobs.
  std::string UnfinishedReason();

 private:
  struct Submission {
    v1::SubmitJobRequest request;
    std::string id;               // Id of its job, once known.
    bool has_dependency = false;  // Depends on another job, which is chosen at submit.
  };
  v1::JobSpec NewSpec(int number);
  // Adds fields of a shared cluster (World::shared).
  void AddSharedFields(Submission* submission);
  void Submit(size_t submission);
  // Whether the job can never start. `others`: jobs for which this is known.
  bool CanNeverStart(const v1::Job& job, const std::set<std::string>& others) const;
  bool LosesCall() { return world_->dice.OneIn(8); }
  std::string RandomJob();
  void Request(const std::string& what, const std::string& id);
  void Cordon(const std::string& node, bool on);
  void Drain(const std::string& node);

  World* const world_;
  Coordinator* const coordinator_;
  Referee* const referee_;
  const std::vector<std::string> nodes_;
  std::vector<Submission> submissions_;
  std::set<std::string>
      too_large_;  // Jobs that need more nodes than exist, or more ranks than their project's quota.
  int open_ = 0;
};

}  // namespace fsdpd::sim
