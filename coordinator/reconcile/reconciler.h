// Reconciler: the only thread that changes jobs. RPC handlers and agents' streams send it events. On each
// tick it adds them to its facts, calls the verdict (verdict.h) and the placer (placer.h), stores the
// resulting change, and only then acts on it. A launch or a stop is therefore never sent for a state that a
// crash could lose. If a write fails, the job is unchanged and the next tick decides again.
//
// It owns the queue of events, the order of the steps of a tick, and the objects that do the steps, each with
// its own state. An object uses only objects declared before it, except through callbacks:
//   facts:    JobTable, NodePresence, AttemptBook
//   nodes:    Cordons, NodeHealth, PreflightRunner, SlotHolders, NodeRecords, DrainRunner
//   jobs:     JobDependencies, WorldChooser, JobQueue, AttemptJudge, EndedJobs
//   events:   AttemptReports, Registrations of agents; JobCommands, NodeCommands of users
//
// The path of a job: Submitted() adds it to the table, JobQueue finds nodes, AttemptBook stores that it
// starts and sends the launch, AttemptReports takes what its ranks report, and AttemptJudge decides what
// follows from it.
//
// Exception: an action that ends ranks runs even if it cannot be stored, because a full disk must not keep
// ranks running; it is stored as soon as possible. This does not apply if the write failed because this
// coordinator lost leadership.
//
// Call order: Load() once, before agents may attach; Start(); ...; Stop(). The first public section may be
// called from any thread. Without Start() there is no thread (simulations and tests): RunOnce() is one tick,
// requests run a tick themselves, and one thread makes all calls. Ownership: borrows everything in Parts,
// which must outlive it.
#pragma once

#include <absl/status/statusor.h>
#include <absl/time/time.h>

#include <deque>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "coordinator/attempt/rendezvous.h"
#include "coordinator/attempt/verdict.h"
#include "coordinator/job/job_watch.h"
#include "coordinator/nodes/cordons.h"
#include "coordinator/nodes/node_registry.h"
#include "coordinator/reconcile/attempt_book.h"
#include "coordinator/reconcile/attempt_judge.h"
#include "coordinator/reconcile/attempt_reports.h"
#include "coordinator/reconcile/drain_runner.h"
#include "coordinator/reconcile/ended_jobs.h"
#include "coordinator/reconcile/event_queue.h"
#include "coordinator/reconcile/job_commands.h"
#include "coordinator/reconcile/job_dependencies.h"
#include "coordinator/reconcile/job_queue.h"
#include "coordinator/reconcile/job_table.h"
#include "coordinator/reconcile/node_commands.h"
#include "coordinator/reconcile/node_health.h"
#include "coordinator/reconcile/node_presence.h"
#include "coordinator/reconcile/node_records.h"
#include "coordinator/reconcile/preflight_runner.h"
#include "coordinator/reconcile/registrations.h"
#include "coordinator/reconcile/slot_holders.h"
#include "coordinator/reconcile/world_chooser.h"
#include "coordinator/schedule/quota.h"
#include "coordinator/store/state_store.h"

namespace fsdpd {

class Meters;

struct ReconcilerOptions {
  absl::Duration tick = absl::Milliseconds(100);
  // For agents to reconnect after the coordinator restarted or did not run for a while.
  absl::Duration reattach_grace = absl::Seconds(15);
  VerdictOptions verdict;
  // How often a change of only the step is stored. A coordinator that starts from an older step gets the
  // newer ones from the agents.
  absl::Duration progress_every = absl::Seconds(1);
  Retention retention;  // Retention of ended jobs.
  PreflightPolicy preflight;
  // False if everything runs in one thread (tests): a request then runs its own tick.
  bool own_thread = true;
  // Whether this coordinator still leads; null if it is the only one. After it loses leadership the thread
  // takes no action, and requests fail because the coordinator is stopping.
  std::function<bool()> leads = nullptr;
};

class Reconciler {
 public:
  using Planner = WorldChooser::Planner;

  struct Parts {
    StateStore* store;
    NodeRegistry* nodes;
    Rendezvous* rendezvous;
    JobBoard* board;
    Clock* clock;
    Planner plan;
    std::function<RanksByProject()> quotas = nullptr;  // Null without quotas.
    Meters* meters = nullptr;                          // Null without metrics.
  };

  Reconciler(ReconcilerOptions options, Parts parts);
  ~Reconciler();

  // --- Any thread -----------------------------------------------------------------------------------------
  // The job is QUEUED in the store and on the board. Its ledger starts at `admitted` (monotonic clock).
  void Submitted(v1::Job job, absl::Time admitted = absl::InfiniteFuture());
  // Blocks until the request is decided (one tick) and returns the job after it. NOT_FOUND, or the error of
  // the store. With an etag (job_etag.h): ABORTED if the job has changed since.
  absl::StatusOr<v1::Job> Cancel(const std::string& id, const std::string& reason, int64_t grace_ms,
                                 const std::string& etag = "");
  // As Cancel(); FAILED_PRECONDITION if the job's state does not allow it.
  absl::StatusOr<v1::Job> Pause(const std::string& id, const std::string& reason, int64_t grace_ms,
                                const std::string& etag = "");
  absl::StatusOr<v1::Job> Resume(const std::string& id, const std::string& reason,
                                 const std::string& etag = "");
  absl::StatusOr<v1::Job> Retry(const std::string& id, const std::string& reason,
                                const std::string& etag = "");
  // Returns the job before its deletion. `unconfirmed_nodes`: DeleteJobResponse's; may be null.
  absl::StatusOr<v1::Job> Delete(const std::string& id, const std::string& etag = "",
                                 std::vector<std::string>* unconfirmed_nodes = nullptr);
  // Blocks until decided. NOT_FOUND for an unknown node.
  absl::Status Cordon(const std::string& node, const std::string& reason);
  absl::Status Uncordon(const std::string& node);
  // As above; the drain continues in the background. FAILED_PRECONDITION if a job there would lose all its
  // progress.
  absl::Status Drain(const std::string& node, const std::string& reason, int64_t grace_ms, bool force);
  // As above. FAILED_PRECONDITION if its agent may reconnect, it hosts ranks or, without `force`, ranks on it
  // may still run.
  absl::Status DeleteNode(const std::string& node, bool force);
  const Cordons& cordons() const { return cordons_; }
  // As above: measures the node. FAILED_PRECONDITION if it cannot be measured now.
  absl::Status Preflight(const std::string& node);
  const Preflights& preflights() const { return preflights_.results(); }
  const AttemptHosts& hosts() const { return attempts_.hosts(); }
  size_t waiting_events() const { return events_.size(); }
  // All readers of ledgers must use this object: one created after a change of the date would add the
  // difference.
  const LedgerDate& ledger_date() const { return jobs_.ledger_date(); }
  int64_t visited_jobs() const { return jobs_.index().visited() + queue_.visited(); }  // In all ticks so far.
  // A stream of `node` is up. REQUIRES: called before any other event of this stream.
  void Attached(const v1::Register& info, int64_t stream_generation);
  // `sent_unix_nanos` is the agent's clock, compared only with itself; 0 if unknown.
  void OnReport(const std::string& node, v1::RankUpdate update, int64_t sent_unix_nanos);
  void OnReport(const std::string& node, const v1::Stopped& stopped);
  void OnReport(const std::string& node, const v1::ComputeTimes& times);
  void OnReport(const std::string& node, const v1::PreflightResult& result);
  // The attempt cannot continue, for a reason other than a rank's exit, as reported by `node`, one of its
  // hosts.
  void AttemptFailed(const std::string& node, const AttemptRef& ref, const std::string& what);

  // --- Owner ----------------------------------------------------------------------------------------------
  absl::Status Load();
  void Start();
  void Stop();
  void RunOnce(absl::Duration wait = absl::ZeroDuration());

 private:
  // Runs `decide` on the reconciler's thread and waits for its answer. `stopped`: the error if the
  // coordinator stops first.
  template <typename T>
  T Decide(const std::string& stopped, std::function<T()> decide);
  absl::Status DecideForNode(std::function<absl::Status()> decide);
  // If the job's etag is still `etag`. `done` names the action in the error of a stop.
  absl::StatusOr<v1::Job> DecideForJob(const std::string& id, const std::string& etag,
                                       const std::string& done,
                                       std::function<absl::StatusOr<v1::Job>()> decide);

  void RunTick(const std::deque<EventQueue::Event>& events);
  void BeginTick();
  void ForgetLostNodes();
  void ForgetNode(const std::string& node);
  void SaveRest();

  const ReconcilerOptions options_;
  const Parts parts_;
  EventQueue events_;
  std::thread thread_;

  // Only the reconciler's thread uses the members below.
  JobTable jobs_;
  NodePresence presence_;
  AttemptBook attempts_;
  Cordons cordons_;
  NodeHealth health_;
  PreflightRunner preflights_;
  SlotHolders slots_;
  NodeRecords records_;
  DrainRunner drains_;
  JobDependencies dependencies_;
  WorldChooser worlds_;
  JobQueue queue_;
  AttemptJudge judge_;
  EndedJobs ended_;
  AttemptReports reports_;
  Registrations registrations_;
  JobCommands job_commands_;
  NodeCommands node_commands_;
  absl::Time rest_saved_ = absl::InfinitePast();
};

}  // namespace fsdpd
