// Failure counts of nodes: decides whether a node is cordoned because attempts of any job failed on it
// (failure_policy.h). A node is cordoned after two such failures within kFailuresWithin unless a job ended
// well there in between. Failures of attempts that ran at the time of an earlier failure belong to the same
// event. So do the end of an agent process and all earlier failures in that process's life.
//
// A job that fails by one node after another without progress is the likely cause itself, for example because
// the kernel kills agents for its memory use. Its failures count against no node.
//
// Node.health stores the count across restarts. Not thread-safe.
#pragma once

#include <absl/time/time.h>

#include <map>
#include <string>

#include "proto/fsdpd/v1/coordinator.pb.h"

namespace fsdpd {

constexpr absl::Duration kFailuresWithin = absl::Hours(1);

class NodeFailures {
 public:
  // Counts the failure of job.failure(), whose attempt is over. Returns why its node should be cordoned, or
  // "". REQUIRES: the failure blames its node.
  std::string Take(const v1::Job& job, absl::Time now, absl::Time wall);
  // A new `instance` starts a new life.
  void Attached(const std::string& node, const std::string& instance, absl::Time wall);
  void ForgetNode(const std::string& node) { lives_.erase(node); }

  void MarkIn(v1::Node* node) const;  // Sets `standing`.
  // Restores a stored node. Call before Attached() for that node.
  void Load(const v1::Node& node, absl::Time now, absl::Time wall);
  int64_t CountedAt(const std::string& node) const;  // Date of the failure that counts; 0: none.

  // A job ended well on the node, or a user confirmed that the node is sound.
  void ClearFailures(const std::string& node) { failures_.erase(node); }

 private:
  struct Failure {
    absl::Time time;
    int64_t unix_nanos = 0;  // The date, to compare with the start of jobs.
    int64_t life = 0;        // Life of the agent into which the attempt was launched.
    std::string what;
  };
  struct Life {
    std::string instance;
    int64_t number = 0;
    int64_t began_unix_nanos = 0;
  };
  int64_t LifeOf(const v1::Job& job) const;

  std::map<std::string, Failure> failures_;  // The last failure of each node, while it counts.
  std::map<std::string, Life> lives_;        // By node: of the agent that registered last.
};

}  // namespace fsdpd
