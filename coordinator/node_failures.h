// How often nodes were to blame for a failed attempt (failure_policy.h), of whichever job: two in a row
// within an hour, with no job between them that ended well there, are one too many. What ran there when it
// failed before, as other jobs' ranks did, is of the same event. So is the end of an agent and whatever
// failed before it in the same life of that agent: an attempt that was launched before the coordinator
// noticed a crash falls by that crash.
//
// A job that fails by one node after another without coming any further is the suspect itself, as one that
// has the kernel kill agents is: what it brings about is held against no node.
//
// By the coordinator's clock, which no date moves. Node.standing keeps the count over a restart.
//
// One thread.
#pragma once

#include <absl/time/time.h>

#include <map>
#include <string>

#include "proto/fsdpd/v1/coordinator.pb.h"

namespace fsdpd {

constexpr absl::Duration kFailuresWithin = absl::Hours(1);

class NodeFailures {
 public:
  // The attempt of job.failure() is over. Why its node is to be cordoned; "" where nothing follows.
  // REQUIRES: the failure blames its node.
  std::string Take(const v1::Job& job, absl::Time now, absl::Time wall);
  // An agent process has registered. A new `instance` is a new life.
  void Attached(const std::string& node, const std::string& instance, absl::Time wall);
  void ForgetNode(const std::string& node) { lives_.erase(node); }

  void MarkIn(v1::Node* node) const;  // Its `standing`.
  // A stored node, before any Attached() of it.
  void Load(const v1::Node& node, absl::Time now, absl::Time wall);
  int64_t CountedAt(const std::string& node) const;  // The date of the failure that counts; 0: none does.

  // A job ended well there, or somebody says that the node is sound.
  void Forgive(const std::string& node) { failures_.erase(node); }

 private:
  struct Failure {
    absl::Time time;
    int64_t unix_nanos = 0;  // Its date, as jobs have one of their start.
    int64_t life = 0;        // Of the agent, into which the attempt was launched.
    std::string what;
  };
  struct Life {
    std::string instance;
    int64_t number = 0;
    int64_t began_unix_nanos = 0;
  };
  int64_t LifeOf(const v1::Job& job) const;

  std::map<std::string, Failure> failures_;  // The last one of each node, while it counts.
  std::map<std::string, Life> lives_;        // By node: of the agent that registered last.
};

}  // namespace fsdpd
