// Preflight results: the last measurement of each node, and the nodes that are being measured now. Results
// are stored with the known nodes (node_records.h) and forgotten with them.
//
// Thread-safe: only the reconciler's thread changes them; any thread reads.
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

// How long a result is valid.
constexpr absl::Duration kPreflightMaxAge = absl::Hours(24);

class Preflights {
 public:
  // --- The reconciler's thread ----------------------------------------------------------------------------
  void Load(const v1::ListNodesResponse& nodes);
  void Set(const std::string& node, v1::NodePreflight preflight);
  void Accept(const std::string& node);  // Accepts the node despite failed checks.
  void Forget(const std::string& node);
  void SetRunning(std::set<std::string> nodes);

  // --- Any thread -----------------------------------------------------------------------------------------
  std::optional<v1::NodePreflight> Find(const std::string& node) const;
  // Identifies a result without copying it, because every tick compares the results of all nodes.
  struct Version {
    int64_t unix_nanos = 0;  // 0: the node was not measured.
    bool accepted = false;
  };
  Version VersionOf(const std::string& node) const;
  // Writes the result into the public form of a node.
  void MarkIn(v1::Node* node) const;

 private:
  mutable Mutex mutex_;
  std::map<std::string, v1::NodePreflight> results_ ABSL_GUARDED_BY(mutex_);
  std::set<std::string> running_ ABSL_GUARDED_BY(mutex_);
};

// Limits the size of a result before it is stored: its content comes from an agent.
v1::PreflightResult CutToBounds(v1::PreflightResult result);

// Whether jobs may use the node that registered `info` without a new measurement. `now` is the date.
bool Passes(const std::optional<v1::NodePreflight>& preflight, const v1::Register& info, absl::Time now);
// The same without the age limit.
bool Passed(const std::optional<v1::NodePreflight>& preflight, const v1::Register& info);

}  // namespace fsdpd
