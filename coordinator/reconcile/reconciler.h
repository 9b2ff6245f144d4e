// Reconciler: the only thread that changes jobs. RPC handlers and agents' streams send it events. On each
// tick it adds them to its facts, calls the verdict (verdict.h) and the placer (placer.h), stores the
// resulting change, and only then acts on it. A launch or a stop is therefore never sent for a state that a
// crash could lose. If a write fails, the job is unchanged and the next tick decides again.
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

#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "base/clock.h"
#include "coordinator/attempt/attempt_facts.h"
#include "coordinator/attempt/attempt_hosts.h"
#include "coordinator/attempt/node_failures.h"
#include "coordinator/attempt/rendezvous.h"
#include "coordinator/attempt/verdict.h"
#include "coordinator/job/job_after.h"
#include "coordinator/job/job_index.h"
#include "coordinator/job/job_ledger.h"
#include "coordinator/job/job_watch.h"
#include "coordinator/nodes/agent_lease.h"
#include "coordinator/nodes/cordons.h"
#include "coordinator/nodes/node_registry.h"
#include "coordinator/nodes/preflight_floors.h"
#include "coordinator/nodes/preflights.h"
#include "coordinator/reconcile/event_queue.h"
#include "coordinator/schedule/placer.h"
#include "coordinator/schedule/preemption.h"
#include "coordinator/schedule/quota.h"
#include "coordinator/schedule/reservations.h"
#include "coordinator/store/state_store.h"
#include "fsdp/plan/plan.h"

namespace fsdpd {

class Meters;

// Which nodes are measured before a job runs there, and the limits they must meet (preflighting.cc).
struct PreflightPolicy {
  std::set<v1::Device> devices;  // Kinds of nodes to measure; empty: none.
  absl::Duration limit = absl::Minutes(2);
  std::vector<PreflightFloor> floors;  // In addition to the built-in floors.
};

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
  // MakePlan() of plan.h, for jobs that were admitted before enough nodes were known.
  using Planner = std::function<Plan(const v1::JobSpec& spec, int64_t budget_bytes_per_rank)>;

  struct Parts {
    StateStore* store;
    NodeRegistry* nodes;
    Rendezvous* rendezvous;
    JobBoard* board;
    Clock* clock;
    Planner plan;
    std::function<RanksByProject()> quotas = nullptr;  // Null if there are none.
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
  // As Cancel() (job_commands.cc); FAILED_PRECONDITION if the job's state does not allow it.
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
  // As above; the drain continues in the background (draining.cc). FAILED_PRECONDITION if a job there would
  // lose all its progress.
  absl::Status Drain(const std::string& node, const std::string& reason, int64_t grace_ms, bool force);
  // As above (node_records.cc). FAILED_PRECONDITION if its agent may reconnect, it hosts ranks or, without
  // `force`, ranks on it may still run.
  absl::Status DeleteNode(const std::string& node, bool force);
  const Cordons& cordons() const { return cordons_; }
  // As above: measures the node. FAILED_PRECONDITION if it cannot be measured now.
  absl::Status Preflight(const std::string& node);
  const Preflights& preflights() const { return preflights_; }
  const AttemptHosts& hosts() const { return hosts_; }
  size_t waiting_events() const { return events_.size(); }
  // All readers of ledgers must use this object: one created after a change of the date would add the
  // difference.
  const LedgerDate& ledger_date() const { return ledger_date_; }
  int64_t visited_jobs() const { return index_.visited() + placed_jobs_; }  // In all ticks so far.
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
  struct LiveJob {
    v1::Job job;
    bool progressed = false;                       // Has steps that are not stored.
    bool new_positions = false;                    // Not shown to readers yet.
    absl::Time not_before = absl::InfinitePast();  // Earliest launch of the next attempt.
    // Loaded without an attempt: if the state was restored from a backup, an agent may still host one.
    bool awaits_agents = false;
    // Loaded and not launched since: the newest attempt that an agent hosts, if the state is older than its
    // launch (a backup). 0: none newer than this coordinator's own.
    int newest_elsewhere = 0;
    // By node: until when the next launch waits for ranks of earlier attempts that the node reports.
    std::map<std::string, absl::Time> leftovers_until;
    std::string not_on_disk;  // Why its last change could not be stored; "" if it is stored.
    // The offer with which an open plan (job_plan.h) was rejected, and why: it is not planned again for the
    // same offer.
    std::optional<int64_t> refused_offer;
    std::string refusal;
    // In PREFLIGHT: nodes that have not passed yet, and whether this process has determined them.
    std::set<std::string> measured;
    bool measured_here = false;
    // Since when the job lacks ranks, and smaller world sizes that were rejected (elastic.h): nodes, ranks
    // per node, and the memory offered per rank.
    std::optional<absl::Time> short_since;
    std::set<std::tuple<int64_t, int64_t, int64_t, int64_t>> refused_worlds;
    // Jobs that it waits for and that have ended, as stored.
    std::map<std::string, v1::JobState> ended_before;
  };
  using Jobs = std::map<std::string, LiveJob>;
  using Attempts = std::map<AttemptRef, AttemptFacts>;
  // Queue order: priority descending, then time of submission.
  using QueuePlace = std::tuple<int64_t, int64_t, std::string>;
  static QueuePlace PlaceInQueue(const v1::Job& job);

  // Between SIGTERM and SIGKILL, for ranks of a job that failed or ended.
  static constexpr int64_t kStopGraceMs = 10000;
  static constexpr int64_t kUnknownGraceMs = 60000;  // For ranks of an unknown job, to save a checkpoint.
  // Per tick: planning a large model takes a good part of a second, and rejecting one takes longer.
  static constexpr int kMaxPlansPerTick = 1;

  // State of a node: name, stream, disconnected, being measured, free devices, reason of the cordon.
  using NodeSnapshot =
      std::tuple<std::string, int64_t, bool, bool, std::vector<int>, std::optional<std::string>>;
  // Inputs of the last pass over the whole queue (placing.cc).
  struct QueueSnapshot {
    std::vector<NodeSnapshot> nodes;
    RanksByProject quotas;
    int64_t changes = 0;  // Changes of index_.
    bool settled = false;
    absl::Time time = absl::InfinitePast();
    bool undone = false;                       // A plan or a reason was left for the next tick.
    absl::Time wake = absl::InfiniteFuture();  // End of the first delay between two attempts.
  };

  using Edit = std::function<void(v1::Job*)>;
  using Answer = std::function<void(absl::StatusOr<v1::Job>)>;

  // Runs `take` on the reconciler's thread and waits for its answer. `done` names the action in the error of
  // a stop.
  absl::StatusOr<v1::Job> Call(const std::string& done, std::function<void(const Answer&)> take);
  // As Call(), if the job's etag is still `etag` or `etag` is empty.
  absl::StatusOr<v1::Job> CallWithEtag(const std::string& id, const std::string& etag,
                                       const std::string& done, std::function<void(const Answer&)> take);
  EventQueue::Event OwnTick();  // For requests; null if the reconciler has its own thread.

  // Agent events (agent_events.cc).
  void TakeCancel(const std::string& id, const std::string& reason, int64_t grace_ms, const Answer& answer);
  void TakeAttached(const v1::Register& info, int64_t stream_generation);
  void TakeUpdate(const std::string& node, const v1::RankUpdate& update, absl::Time received,
                  absl::Duration age);
  void TakeStepReport(AttemptFacts* facts, const v1::StepReport& step);
  void KeepWarnings(const v1::StepReport& step, LiveJob* live);
  void ApplyReady(const AttemptFacts& facts, const LiveJob& live);
  void TakeCheckpoint(const std::string& node, const v1::SavedCheckpoint& saved, AttemptFacts* facts);
  void TakeRankZeroReady(const std::string& node, const v1::RankReady& ready, AttemptFacts* facts);
  void RefuseCheckpoint(const std::string& node, int64_t step, AttemptFacts* facts);
  void TakeRankZeroExit(const AttemptFacts& facts, const v1::RankExit& exit);
  void TakeComputeTimes(const std::string& node, const v1::ComputeTimes& times);
  void TakeRankPosition(const v1::RankUpdate& update, const AttemptFacts& facts);
  // Returns false if rejected. `leftovers`: attempts that the node has reported before, of this registration
  // or retained.
  bool TakeUnwanted(const v1::Register& info, const AttemptRef& ref, int leftovers);
  void TakeNewerAttempt(const std::string& node, int attempt, LiveJob* live);
  absl::Time WaitForLeftovers(const std::string& node, LiveJob* live);
  void StopUnwanted(const v1::Register& info, const AttemptRef& ref, const StopOrder& order, bool placed,
                    absl::Time awaited_until);
  StopOrder OrderForUnknown(const std::string& job) const;

  // Job commands (job_commands.cc).
  void TakePause(const std::string& id, const std::string& reason, int64_t grace_ms, const Answer& answer);
  void TakeResume(const std::string& id, const std::string& reason, const Answer& answer);
  void TakeRetry(const std::string& id, const std::string& reason, const Answer& answer);
  absl::StatusOr<v1::Job> TakeDelete(const std::string& id, std::vector<std::string>* unconfirmed_nodes);
  void ForgetOldJobs();
  void SendForgets();
  absl::Status Requeue(LiveJob* live, const std::string& reason);
  absl::Status CheckDirectory(const v1::Job& ended);
  absl::Status RefuseEnded(const std::string& id, const char* what, const char* hint);

  // Awaiting (awaiting.cc).
  StateOfJob StatesFor(LiveJob* live);
  bool AdvanceAwaiting();
  absl::Status TakeDependencyChanges(LiveJob* live, const DependencyChanges& changes);
  absl::Status ReleaseAwaiting(const v1::Job& deleted);

  // Preempting (preempting.cc).
  struct Preempted {
    bool suffices = false;  // As Victims::suffices (preemption.h).
    std::string note;       // Which jobs leave for it; appended to the reason why it waits.
  };
  Preempted PreemptFor(const v1::Job& head, const PlaceRequest& request, const Reservations& ahead);
  std::vector<Occupant> Occupants(const v1::Job& head) const;
  void AddPreflights(const v1::Job& head, std::vector<Occupant>* all) const;
  absl::Status Preempt(LiveJob* live, const v1::Job& head);

  // A tick, and its parts.
  void RunTick(const std::deque<EventQueue::Event>& events);
  bool Leads() const { return options_.leads == nullptr || options_.leads(); }
  void BeginTick();
  void AdvanceJobs();
  void Advance(const std::string& id, std::vector<v1::Job>* notes);
  void StoreReported(std::vector<v1::Job> notes);
  void ReportStall(LiveJob* live, AttemptFacts* facts);
  void ShortenUselessSave(LiveJob* live, AttemptFacts* facts);
  void PublishPositions();
  void ShowSlowRanks();
  void AdvanceStops();
  Attempts::iterator CloseAttempt(Attempts::iterator it);  // Returns the next one.
  void PlaceQueued();
  void SaveRest();
  void MarkUnsaved(LiveJob* live);

  // Remembering (node_records.cc).
  // Stored state of a node: stream generation; connected; left; time of the preflight and whether it is
  // accepted; jobs with unconfirmed ranks; time of the failure that counts; healthy since; revoked
  // certificate; whether it is being measured.
  using NodeRecord = std::tuple<int64_t, bool, bool, int64_t, bool, std::vector<std::string>, int64_t,
                                absl::Time, std::string, bool>;
  std::map<std::string, NodeRecord> NodeRecords() const;
  void RememberNodes();
  // `all`: also stores unchanged nodes, to update their date.
  absl::Status StoreNodes(bool all = false);
  absl::Status CheckDeletable(const std::string& node, bool force) const;
  std::vector<std::string> JobsWithRanksOn(const std::string& node) const;
  absl::Status KeepDeletedHost(const std::string& node, const std::vector<std::string>& jobs);
  void ForgetDeletedHost(const std::string& node);
  bool WasDeletedWithout(const std::string& node, const std::string& job) const;
  void KeepUnconfirmed(const AttemptFacts& facts);

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
  void LogNotStored(const std::string& id, const absl::Status& why);
  void ReportTooLarge(LiveJob* live, const absl::Status& why);
  void Adopt(LiveJob* live, v1::Job next, const std::string& not_on_disk = "");
  static v1::Job Shown(const LiveJob& live);  // As readers see it.

  // Placing (placing.cc).
  std::string HeldReason(LiveJob* live, const PlaceRequest& request, RemainingQuotas* quotas,
                         v1::Job::Waiting* waiting);
  absl::Status ClosePlan(LiveJob* live, int64_t offer_bytes);
  absl::Status GiveUp(LiveJob* live, const std::string& why);
  void ShowWaiting(std::map<std::string, v1::Job::Waiting> waiting);
  QueueSnapshot SnapshotQueue(const std::vector<NodeSlots>& slots) const;
  bool QueueIsAsBefore(const QueueSnapshot& now) const;
  // For an idle job whose last attempt failed on a node that is still silent: text that names the node, or
  // "".
  std::string PossibleLeftovers(const v1::Job& job) const;
  std::string LeftoversOf(const std::string& id) const;
  std::vector<std::string> LostWithRanksOf(const std::string& id) const;
  EarlierAttempts EarlierAttemptsOf(const v1::Job& job) const;
  PlaceDecision Decide(LiveJob* live, const std::vector<NodeSlots>& slots, int* plans);
  static PlaceRequest RequestAgain(const v1::Job& job);
  struct Placing;
  std::string PlaceNext(LiveJob* live, Placing* placing);
  std::string PlaceFirst(LiveJob* live, const PlaceRequest& request, Placing* placing);
  std::string PlaceBehind(LiveJob* live, const PlaceRequest& request, const std::string& ahead,
                          Placing* placing);
  static std::string SkipImpossible(const LiveJob& live, const PlaceDecision& decision, Placing* placing);
  std::string LaunchFrom(LiveJob* live, const PlaceDecision& decision, bool backfilled, Placing* placing);
  absl::Status Launch(LiveJob* live, const PlaceDecision& decision, bool backfilled);
  void SendLaunch(const v1::Job& job, NodePart* part, bool again = false);
  void ResendLaunches(AttemptFacts* facts);
  void BeginStop(AttemptFacts* facts, int64_t grace_ms, const std::string& reason, bool save = false);
  void SendStop(const AttemptFacts& facts, const NodePart& part);
  void SendLocate(const AttemptFacts& facts, const std::string& reason);
  void ForgetIfEnded(const std::string& id);

  // Preflighting (preflighting.cc).
  struct Measurement {
    int64_t number = 0;  // 0: ordered by a previous process of the coordinator under an unknown number.
    absl::Time until;
    absl::Time lost_at = absl::InfiniteFuture();  // When its agent reconnected without it.
  };
  absl::Status Begin(LiveJob* live, const PlaceDecision& decision, bool backfilled);
  bool NeedsPreflight(const std::string& node, const v1::Job& job) const;
  bool IsIdle(const std::string& node) const;
  void Measure(const std::string& node);
  void TakePreflight(const std::string& node, const v1::PreflightResult& result);
  int64_t NumberOfPreflight(const std::string& node) const;  // Number of the newest result; 0: none.
  void RefusePreflight(const std::string& node, const v1::PreflightResult& result);
  void LoadMeasurement(const v1::Node& node);
  bool TakeMeasuring(const std::string& node, bool still);
  void AdvanceMeasurements();
  void ShowMeasurements();
  void AdvancePreflights();
  std::string UnplacedReason(LiveJob* live);
  void HoldForPreflights(std::vector<NodeSlots>* slots) const;
  // Resizing (resizing.cc).
  PlaceDecision DecideWorld(LiveJob* live, const std::vector<NodeSlots>& nodes, const RemainingQuotas& quotas,
                            int* plans);
  PlaceDecision Shrink(LiveJob* live, const std::vector<NodeSlots>& nodes, const std::string& why,
                       int* plans);

  // Cordoning (cordoning.cc).
  absl::Status Decided(const std::function<absl::Status()>& decide);
  bool IsKnown(const std::string& node) const;
  absl::Status AcceptMeasured(const std::string& node);
  void JudgeNodes(const v1::Job& job, JobEvent event);
  bool MayBeCordoned(const std::string& node) const;
  void OpenHealthyNodes();
  absl::Time HealthySince(const std::string& node) const;
  void MarkStanding(v1::Node* node) const;
  void LoadStanding(const v1::Node& node);
  void ResumeHealth(const std::string& node, const std::string& instance);
  bool OthersDisconnectedWith(const std::string& node) const;

  // Draining (draining.cc).
  std::vector<std::string> JobsLosingProgress(const std::string& node) const;
  void AdvanceDrains();
  void MoveJob(LiveJob* live, const std::string& node, const v1::Cordon::Drain& drain);
  bool HasNothing(const std::string& node) const;
  bool IsEmpty(const std::string& node) const;
  void MarkEmpty(const std::string& node, v1::Cordon cordon);
  void MarkNotEmpty(const std::string& node, v1::Cordon cordon);
  void RevertEmpty(const std::string& node);

  AttemptFacts& OpenAttempt(const v1::Job& job, bool recovered);
  AttemptFacts* FactsOf(const AttemptRef& ref);
  AttemptFacts* FactsOf(const v1::Job& job) { return FactsOf(AttemptRef{job.id(), job.attempt()}); }
  AttemptFacts* FactsOfNothing(const v1::Job& job);
  int64_t EndOf(const v1::Job& job, const AttemptFacts& facts) const;
  bool IsCurrent(const AttemptRef& ref) const;  // The current attempt of a live job.
  void LoadAttempt(const v1::Job& job);
  bool HasEnded(const std::string& id) const { return jobs_.count(id) == 0; }
  void ForgetLostNodes();
  void ForgetNode(const std::string& node);
  void ReadPresence();
  Presence PresenceAt(const std::string& node) const;
  // Whether its hosted ranks are known too. Before that its slots may be in use.
  bool HasReported(const NodeView& view) const;
  bool HasRefusedRanks(const std::string& node) const;
  std::set<std::string> FullNodes() const;
  std::vector<NodeSlots> SlotsNow() const;

  const ReconcilerOptions options_;
  const Parts parts_;
  const LedgerDate ledger_date_;
  Cordons cordons_;
  Preflights preflights_;
  AttemptHosts hosts_;
  EventQueue events_;
  std::thread thread_;

  // Only the reconciler's thread uses the members below.
  Jobs jobs_;                                // Jobs that have not ended.
  JobIndex index_;                           // Index of jobs_.
  std::set<std::string> unsaved_;            // Their checkpoints, plan or cancel could not be stored.
  std::set<QueuePlace> queue_;               // QUEUED jobs.
  QueueSnapshot last_queue_;                 // The last one.
  Attempts attempts_;                        // Until no node has ranks of them.
  std::map<std::string, int64_t> attached_;  // Node -> generation of the stream that TakeAttached() saw.
  std::map<std::string, NodeView> views_;    // As of this tick.
  std::map<std::string, Measurement> measurements_;  // By node, while they run.
  int64_t newest_measurement_ = 0;                   // Its number.
  // By node: until when ranks may still run there that were not placed and were ordered to stop.
  std::map<std::string, absl::Time> refused_until_;
  std::set<std::string> full_nodes_;        // FullNodes(), from this tick's AdvanceStops() on.
  std::set<std::string> unrequested_from_;  // Nodes whose refused preflight results were logged.
  std::set<std::string> bad_times_from_;    // Nodes whose refused compute times were logged.
  NodeFailures node_failures_;
  // Cordoned nodes that have been connected without interruption.
  std::map<std::string, absl::Time> healthy_since_;
  // As stored by the previous process, with the agent's instance: until that agent reconnects or its time is
  // over.
  std::map<std::string, std::pair<std::string, absl::Time>> healthy_before_;
  absl::Time next_opening_ = absl::InfinitePast();  // When OpenHealthyNodes() checks cordons again.
  // Drained nodes that are not empty, which is not stored yet.
  std::map<std::string, absl::Time> not_empty_since_;
  AgentLease lease_;                                    // Holds the tick's time.
  std::map<std::string, NodeRecord> nodes_remembered_;  // As stored.
  absl::Time nodes_remembered_at_ = absl::InfinitePast();
  absl::Time nodes_dated_at_ = absl::InfinitePast();  // When the date of all nodes was stored.
  bool nodes_stored_ = true;
  int64_t placed_jobs_ = 0;  // Number of calls of PlaceNext().
  absl::Time last_rest_save_ = absl::InfinitePast();
  absl::Time progress_saved_ = absl::InfinitePast();
  absl::Time old_forgotten_ = absl::InfinitePast();
  std::deque<std::string> to_forget_;                     // Jobs that agents should forget: SendForgets().
  absl::Time store_error_logged_ = absl::InfinitePast();  // When a failed write was last logged.
};

}  // namespace fsdpd
