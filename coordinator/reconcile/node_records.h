// Records of nodes in the store: the next process of the coordinator knows from them which nodes are missing,
// their preflight results, and which jobs may still have ranks on a lost node. After a node is deleted, the
// jobs record which of them may still have ranks there (Job.deleted_hosts).
//
// Call order: Load(); then Remember() per tick. Not thread-safe: used only by the reconciler's thread.
// Ownership: borrows everything in Parts.
#pragma once

#include <absl/status/status.h>
#include <absl/time/time.h>

#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "base/clock.h"
#include "coordinator/reconcile/job_table.h"
#include "coordinator/reconcile/node_health.h"
#include "coordinator/reconcile/node_presence.h"
#include "coordinator/reconcile/preflight_runner.h"
#include "coordinator/store/state_store.h"

namespace fsdpd {

class NodeRecords {
 public:
  struct Parts {
    JobTable* jobs;
    const NodePresence* presence;
    const NodeHealth* health;
    const PreflightRunner* preflights;
    StateStore* store;
    const Clock* clock;
  };

  explicit NodeRecords(Parts parts) : parts_(parts) {}

  void Load(const v1::Node& node, const NodeView& view);  // `view`: ViewOf(node).
  // Stores changed nodes, at most every second; a failed write is retried. `all`: stores all nodes, now.
  void Remember(bool all = false);
  void RememberSoon() { remembered_at_ = absl::InfinitePast(); }  // At the next Remember().
  // Stores changed nodes now. `all`: also stores unchanged nodes, to update their date.
  absl::Status Store(bool all = false);

  // Deletes the record, and records the node in the jobs that may still have ranks there. An error of the
  // store changes nothing.
  absl::Status Delete(const std::string& node, bool is_known, const std::vector<std::string>& unconfirmed);
  // The node has registered again and reported each rank that still runs there: jobs no longer name it.
  void ForgetDeletedHost(const std::string& node);
  // Whether the newest deletion of the node was without unconfirmed ranks of the job: the node had registered
  // since the deletion that Job.deleted_hosts records.
  bool WasDeletedWithout(const std::string& node, const std::string& job) const;

 private:
  // Stored state of a node: stream generation; connected; left; time of the preflight and whether it is
  // accepted; jobs with unconfirmed ranks; time of the failure that counts; healthy since; revoked
  // certificate; whether it is being measured.
  using Record = std::tuple<int64_t, bool, bool, int64_t, bool, std::vector<std::string>, int64_t, absl::Time,
                            std::string, bool>;

  std::map<std::string, Record> RecordsNow() const;
  absl::Status KeepDeletedHost(const std::string& node, const std::vector<std::string>& jobs);

  const Parts parts_;
  std::map<std::string, Record> remembered_;  // As stored.
  absl::Time remembered_at_ = absl::InfinitePast();
  absl::Time dated_at_ = absl::InfinitePast();  // When the date of all nodes was stored.
  bool stored_ = true;
};

}  // namespace fsdpd
