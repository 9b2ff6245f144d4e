// What nodes were found to be when they were measured last, and which are measured now. The results are
// stored with the nodes that are known (remembering.cc), and forgotten with them.
//
// Thread-safe: the reconciler's thread changes them, anybody reads.
#pragma once

#include <absl/time/time.h>

#include <map>
#include <optional>
#include <set>
#include <string>

#include "base/mutex.h"
#include "proto/fsdpd/v1/agent.pb.h"
#include "proto/fsdpd/v1/coordinator.pb.h"

namespace fsdpd {

// For how long a result says what a node is.
constexpr absl::Duration kPreflightCounts = absl::Hours(24);

class Preflights {
 public:
  // --- The reconciler's thread ----------------------------------------------------------------------------
  void Load(const v1::ListNodesResponse& nodes);
  void Set(const std::string& node, v1::NodePreflight preflight);
  void Accept(const std::string& node);  // Whatever its faults are.
  void Forget(const std::string& node);
  void SetRunning(std::set<std::string> nodes);

  // --- Any thread -----------------------------------------------------------------------------------------
  std::optional<v1::NodePreflight> Find(const std::string& node) const;
  // What tells one result of a node from another, without a copy of it: asked for all nodes in each tick.
  struct Version {
    int64_t unix_nanos = 0;  // 0: the node was not measured.
    bool accepted = false;
  };
  Version VersionOf(const std::string& node) const;
  // Into the public form of a node.
  void MarkIn(v1::Node* node) const;

 private:
  mutable Mutex mutex_;
  std::map<std::string, v1::NodePreflight> results_ ABSL_GUARDED_BY(mutex_);
  std::set<std::string> running_ ABSL_GUARDED_BY(mutex_);
};

// As it is kept: an agent may send what it likes, and a coordinator's disk has bounds.
v1::PreflightResult CutToBounds(v1::PreflightResult result);

// Whether jobs may have the node that `info` registers without that it is measured again. `now`: the date.
bool Passes(const std::optional<v1::NodePreflight>& preflight, const v1::Register& info, absl::Time now);
// Whether it may, were the result not too old.
bool Passed(const std::optional<v1::NodePreflight>& preflight, const v1::Register& info);

}  // namespace fsdpd
