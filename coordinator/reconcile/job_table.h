// Table of live jobs, that is, of jobs that have not ended. Every change of a state goes through it: it is
// stored first and shown to readers second; if the write fails, the job is unchanged. The exception is
// CommitUnstored(). Reports edit the job and call MarkUnsaved() or ShowUnsaved().
//
// Call order: Add() for each job that is loaded or submitted; Commit() and its siblings; ForgetIfEnded()
// after a change that may have ended the job. A reference to a LiveJob is valid until then. Not thread-safe:
// used only by the reconciler's thread. Ownership: borrows everything in Parts.
#pragma once

#include <absl/status/statusor.h>
#include <absl/time/time.h>

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "coordinator/job/job_index.h"
#include "coordinator/job/job_ledger.h"
#include "coordinator/job/job_machine.h"
#include "coordinator/job/job_watch.h"
#include "coordinator/store/state_store.h"

namespace fsdpd {

class Meters;

// A job and the state that this process has about it. Fields are listed by the class that reads them; others
// may reset them.
struct LiveJob {
  v1::Job job;
  // JobTable.
  bool progressed = false;  // Has steps that are not stored.
  std::string not_on_disk;  // Why its last change could not be stored; "" if it is stored.
  // AttemptReports: has positions that are not shown to readers yet.
  bool new_positions = false;
  // JobQueue: the earliest launch of the next attempt.
  absl::Time not_before = absl::InfinitePast();
  // Registrations. Loaded without an attempt: if the state was restored from a backup, an agent may still
  // host one.
  bool awaits_agents = false;
  // Loaded and not launched since: the newest attempt that an agent hosts, if the state is older than its
  // launch (a backup). 0: none newer than this coordinator's own.
  int newest_elsewhere = 0;
  // By node: until when the next launch waits for ranks of earlier attempts that the node reports.
  std::map<std::string, absl::Time> leftovers_until;
  // WorldChooser: the offer with which an open plan (job_plan.h) was rejected, and why. It is not planned
  // again for the same offer.
  std::optional<int64_t> refused_offer;
  std::string refusal;
  // Since when the job lacks ranks, and smaller world sizes that were rejected (elastic.h): nodes, ranks per
  // node, and the memory offered per rank.
  std::optional<absl::Time> short_since;
  std::set<std::tuple<int64_t, int64_t, int64_t, int64_t>> refused_worlds;
  // PreflightRunner. In PREFLIGHT: nodes that have not passed yet, and whether this process has determined
  // them.
  std::set<std::string> measured;
  bool measured_here = false;
  // JobDependencies: jobs that it waits for and that have ended, as stored.
  std::map<std::string, v1::JobState> ended_before;
};

// Position of a QUEUED job: priority descending, then time of submission.
using QueuePlace = std::tuple<int64_t, int64_t, std::string>;
QueuePlace PlaceInQueue(const v1::Job& job);

class JobTable {
 public:
  struct Parts {
    StateStore* store;
    JobBoard* board;
    Clock* clock;
    Meters* meters;  // Null without metrics.
    // Whether this coordinator still leads; null if it is the only one.
    std::function<bool()> leads;
    absl::Duration progress_every;  // How often a change of only the step is stored.
  };
  using Edit = std::function<void(v1::Job*)>;

  explicit JobTable(Parts parts) : parts_(std::move(parts)), ledger_date_(parts_.clock) {}

  bool Leads() const { return parts_.leads == nullptr || parts_.leads(); }
  const LedgerDate& ledger_date() const { return ledger_date_; }  // Any thread.

  LiveJob* Find(const std::string& id);  // Null: the job is not live.
  const LiveJob* Find(const std::string& id) const;
  LiveJob& At(const std::string& id) { return jobs_.at(id); }
  const LiveJob& At(const std::string& id) const { return jobs_.at(id); }
  bool HasEnded(const std::string& id) const { return jobs_.count(id) == 0; }
  std::map<std::string, LiveJob>& all() { return jobs_; }
  const JobIndex& index() const { return index_; }
  std::vector<std::string> In(JobIndex::View view) const { return index_.In(view); }
  const std::set<QueuePlace>& queue() const { return queue_; }

  LiveJob& Add(v1::Job job);
  void Remove(const std::string& id);
  void ForgetIfEnded(const std::string& id);

  // Returns the job after `event` (and `edit`).
  absl::StatusOr<v1::Job> After(const LiveJob& live, JobEvent event, const std::string& reason,
                                const Edit& edit = nullptr) const;
  // Stores the job, then shows it to readers. An error changes nothing.
  absl::Status Commit(LiveJob* live, JobEvent event, const std::string& reason, const Edit& edit = nullptr);
  // Applies a change that could not be stored because of `why`, which readers see until SaveRest() has stored
  // it. Without leadership it returns `why` and changes nothing: this process will never store it, and the
  // next leader judges by the stored state.
  absl::Status CommitUnstored(LiveJob* live, JobEvent event, const std::string& reason,
                              const absl::Status& why, const Edit& edit = nullptr);
  // Ends a job that can never be launched.
  absl::Status GiveUp(LiveJob* live, const std::string& reason);
  // Stores changed jobs that require no further action in one write, because thousands may change together.
  // Those that cannot be stored are unchanged.
  void CommitAll(std::vector<v1::Job> changed);
  // Stores and shows a job whose state and reason are unchanged.
  absl::Status CommitEdited(LiveJob* live, v1::Job edited);
  // `next` was stored by the caller, or could not be because of `not_on_disk`.
  void Adopt(LiveJob* live, v1::Job next, const std::string& not_on_disk = "");

  // live->job was edited: SaveRest() stores it. ShowUnsaved() also shows it to readers now.
  void MarkUnsaved(LiveJob* live);
  void ShowUnsaved(LiveJob* live);
  static v1::Job Shown(const LiveJob& live);  // As readers see it.
  // Stores jobs that are marked as unsaved and, every progress_every or if `all`, those that have progressed.
  void SaveRest(absl::Time now, bool all = false);

 private:
  void LogNotStored(const std::string& id, const absl::Status& why);
  void ReportTooLarge(LiveJob* live, const absl::Status& why);

  const Parts parts_;
  const LedgerDate ledger_date_;
  std::map<std::string, LiveJob> jobs_;
  JobIndex index_;
  std::set<std::string> unsaved_;
  std::set<QueuePlace> queue_;
  absl::Time progress_saved_ = absl::InfinitePast();
  absl::Time store_error_logged_ = absl::InfinitePast();  // When a failed write was last logged.
};

}  // namespace fsdpd
