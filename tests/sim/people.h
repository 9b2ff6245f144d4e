// The clients of a run: they submit jobs and ask for what people ask, over calls that are lost before they
// arrive or before they are answered, and that are made again. What they were answered is the referee's to
// hold to.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "proto/fsdpd/v1/coordinator.pb.h"
#include "tests/sim/coordinator.h"
#include "tests/sim/referee.h"
#include "tests/sim/world.h"

namespace fsdpd::sim {

class People {
 public:
  People(World* world, Coordinator* coordinator, Referee* referee, std::vector<std::string> nodes)
      : world_(world), coordinator_(coordinator), referee_(referee), nodes_(std::move(nodes)) {}

  void SubmitSome(int jobs, absl::Duration within);
  void AskSomething();
  // From now on they want all jobs to go on, and all nodes to be used.
  void LetAllGoOn();

  bool all_answered() const { return open_ == 0; }
  // Of jobs that were accepted and not deleted: why the run is not over for it; "" when it is.
  std::string WhyNotOver();

 private:
  struct Wish {
    v1::SubmitJobRequest request;
    std::string id;      // Of its job, once that is known.
    bool waits = false;  // It is to come after another job, which is chosen when it is submitted.
  };
  v1::JobSpec NewSpec(int number);
  // What people ask for who share a cluster (World::shared).
  void Share(Wish* wish);
  void Submit(size_t wish);
  // In `others` are jobs that do, as far as is known.
  bool WaitsForGood(const v1::Job& job, const std::set<std::string>& others) const;
  bool Lost() { return world_->dice.OneIn(8); }
  std::string SomeJob();
  void Ask(const std::string& what, const std::string& id);
  void Cordon(const std::string& node, bool on);
  void Drain(const std::string& node);

  World* const world_;
  Coordinator* const coordinator_;
  Referee* const referee_;
  const std::vector<std::string> nodes_;
  std::vector<Wish> wishes_;
  std::set<std::string>
      too_large_;  // Jobs for which there never are nodes enough, or ranks of their project.
  int open_ = 0;
};

}  // namespace fsdpd::sim
