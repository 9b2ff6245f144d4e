// Cordoned nodes, with reason and time. A cordon is stored before it is visible, and remains until it is
// lifted, independent of the node's agent and of coordinator restarts. A cordon by the coordinator itself
// takes effect immediately even if the store fails, and is stored later. If its reason is failed attempts, it
// ends when the node is healthy again (node_health.h).
//
// Each change is stored together with its event.
//
// Thread-safe: the reconciler's thread writes, any thread reads.
#pragma once

#include <absl/status/status.h>
#include <absl/time/time.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "coordinator/schedule/placer.h"
#include "coordinator/store/state_store.h"

namespace fsdpd {

// As many as known nodes (node_registry.h); removed nodes keep their cordons.
constexpr size_t kMaxCordons = 4096;
// A node that was cordoned because of failed attempts is uncordoned after its agent was connected this long
// without interruption. A node that fails at each launch then costs one attempt every five minutes.
constexpr absl::Duration kHealthyFor = absl::Minutes(5);

bool ExpiresAutomatically(const v1::Cordon& cordon);
// The reason for users, with the end of the cordon, which is not stored in the reason.
std::string ShownReason(const v1::Cordon& cordon);

class Cordons {
 public:
  explicit Cordons(StateStore* store) : store_(store) {}

  // --- The reconciler's thread ----------------------------------------------------------------------------
  absl::Status Load();
  // Errors: those of the store, or RESOURCE_EXHAUSTED above kMaxCordons; nothing is changed then.
  absl::Status Set(const std::string& node, const v1::Cordon& cordon);
  absl::Status Lift(const std::string& node, absl::Time now, const std::string& why = "");
  void SetUnstored(const std::string& node, const v1::Cordon& cordon);
  // Cordons in memory only, until the next Set() or Lift(): the stored state may turn out to be right, and
  // then no event is needed.
  void HoldUnstored(const std::string& node, const v1::Cordon& cordon);
  // The stored cordon while HoldUnstored() overrides it.
  std::optional<v1::Cordon> StoredBehind(const std::string& node) const;
  void SaveRest();  // Retries writes that failed.

  // --- Any thread -----------------------------------------------------------------------------------------
  std::optional<v1::Cordon> Find(const std::string& node) const;
  std::map<std::string, v1::Cordon> All() const;
  void MarkIn(std::vector<NodeSlots>* slots) const;

 private:
  absl::Status CheckCapacity(const std::string& node) const;
  absl::Status Store(const std::string& node, const v1::Cordon& cordon);

  StateStore* const store_;
  // Used only by the reconciler's thread.
  std::map<std::string, v1::Cordon> unsaved_;
  std::map<std::string, v1::Cordon> stored_behind_;
  mutable Mutex mutex_;
  std::map<std::string, v1::Cordon> cordons_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace fsdpd
