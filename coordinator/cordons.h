// The nodes on which no job is placed, with why and since when. A cordon is on disk before it is known, and
// stays until somebody takes it away, whatever becomes of the node's agent and of the coordinator. One that
// the coordinator makes by itself holds at once though the disk takes nothing, and is stored once it does; if
// it is for failed attempts, it ends by itself once the node is healthy (cordoning.cc).
//
// Each change is stored with an event that tells of it.
//
// Thread-safe: the reconciler's thread changes them, anybody reads.
#pragma once

#include <absl/status/status.h>
#include <absl/time/time.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "coordinator/placer.h"
#include "coordinator/store/state_store.h"

namespace fsdpd {

// As many as nodes that are known (node_registry.h): names of nodes that are no more keep theirs.
constexpr size_t kMaxCordons = 4096;
// A node that the coordinator cordoned since attempts failed by it opens again after its agent was connected
// for so long without a break. A node that fails at each launch then costs an attempt every five minutes.
constexpr absl::Duration kHealthyFor = absl::Minutes(5);

// Whether the cordon ends by itself.
bool OpensByItself(const v1::Cordon& cordon);
// The reason as users see it: with when the cordon ends, which is not stored with the reason.
std::string ShownReason(const v1::Cordon& cordon);

class Cordons {
 public:
  explicit Cordons(StateStore* store) : store_(store) {}

  // --- The reconciler's thread ----------------------------------------------------------------------------
  absl::Status Load();
  // An error is the store's, or RESOURCE_EXHAUSTED over kMaxCordons, and changes nothing.
  absl::Status Set(const std::string& node, const v1::Cordon& cordon);
  absl::Status Lift(const std::string& node, absl::Time now, const std::string& why = "");
  void SetAnyway(const std::string& node, const v1::Cordon& cordon);
  // It holds, and is not stored: what is stored may be found to be true after all, and is then no news. Until
  // the next Set() or Lift().
  void HoldUnstored(const std::string& node, const v1::Cordon& cordon);
  // What is stored, while another one is held.
  std::optional<v1::Cordon> StoredBehind(const std::string& node) const;
  void SaveRest();  // What could not be stored.

  // --- Any thread -----------------------------------------------------------------------------------------
  std::optional<v1::Cordon> Find(const std::string& node) const;
  std::map<std::string, v1::Cordon> All() const;
  void MarkIn(std::vector<NodeSlots>* slots) const;

 private:
  absl::Status CheckRoom(const std::string& node) const;
  absl::Status Store(const std::string& node, const v1::Cordon& cordon);

  StateStore* const store_;
  // The reconciler's thread alone.
  std::map<std::string, v1::Cordon> unsaved_;
  std::map<std::string, v1::Cordon> stored_behind_;
  mutable Mutex mutex_;
  std::map<std::string, v1::Cordon> cordons_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace fsdpd
