// The ranks of this node: starts them, observes their exits, stops them. It owns which launch is accepted,
// when a rank counts as gone, and the escalation of a stop: SIGTERM to the process tree, SIGKILL after the
// grace period, then proof that no process and no GPU memory of the rank is left (freed_memory.h).
// hosted_rank.h is one rank.
//
// Stopping a job with checkpoints: when the agent stops, and for a Stop with `save`, ranks first get a
// LeaveOrder, so that they can save within the grace period.
//
//   LeaveOrder ----------------- terminate_at: SIGTERM ----- kill_at: SIGKILL
//              rank saves, exits               kExitTime
//
// Once a rank has left, terminate_at is at most kPeerExitTime later. If a rank died, terminate_at is now,
// since the others cannot save without it. A rank that died on its own was not stopped, although it had a
// LeaveOrder: its exit is not `cancelled`.
//
//   Launch -> RankLaunched per rank -> LaunchAcknowledged
//          -> RankReady, RankStepped ..., CheckpointSaved ..., RankExited per rank -> AttemptGone
//   A repeated Launch -> LaunchAcknowledged; a refused one -> RankExited per rank
//   Stop   -> the same end, with RankExit.cancelled; AttemptGone has stopped=true
//
// An exception while a rank is handled is an internal error (internal_errors.h): the ranks of its attempt are
// handled again a second later, and other attempts are not affected.
//
// One thread runs a poll loop over the sockets and pidfds of the ranks and over posted tasks; all other state
// belongs to this thread. The exit of a rank wakes the loop and is reported immediately. Processes that a
// dead rank leaves behind are killed without a grace period, since nothing will clean up after it.
//
// When a rank fails, the coordinator sends Stop. If it has been away for kDisconnectLimit, the rest of the
// attempt is stopped here: a collective that misses a rank would only hold its devices. rank_reports.h
// reports what ranks send and how they exit.
//
// The position of a rank is read from its flight recorder (base/rank/flight_recorder.h) for Locate, and for
// its exit message just before it is asked to leave or after it ended, whichever is first: after an abort,
// lanes continue past the instruction at which they were blocked.
//
// Every second each rank is checked for progress. One without progress for longer than its limit
// (no_progress.h) is reported repeatedly until it moves again. The clock restarts after this process was
// suspended. It also restarts after the coordinator was away, for attempts whose ranks rendezvous through it.
//
// REQUIRES: BecomeSubreaper(); one supervisor per process; `events` and `logs` outlive it. Thread-safe.
// Launch, Stop, Locate, Trace and StoreValue do not block; their results are events.
#pragma once

#include <absl/time/time.h>

#include <functional>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "agent/hang/suspension_watch.h"
#include "agent/launch/attempt.h"
#include "agent/launch/attempt_history.h"
#include "agent/launch/path_roots.h"
#include "agent/ranks/internal_errors.h"
#include "agent/ranks/launch_refusal.h"
#include "agent/ranks/rank_events.h"
#include "agent/ranks/rank_logs.h"
#include "agent/ranks/rank_process.h"
#include "agent/ranks/rank_reports.h"
#include "agent/ranks/running_attempt.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "proto/fsdpd/v1/agent.pb.h"
#include "proto/fsdpd/v1/rank.pb.h"

namespace fsdpd {

class RankSupervisor {
 public:
  struct Options {
    std::string rank_binary;
    int slots = 1;
    v1::Device device = v1::DEVICE_CPU;
    std::string bind_address = "127.0.0.1";
    absl::Duration grace = absl::Seconds(5);  // For a Stop without a grace period.
    std::set<std::string> allowed_env;        // Patterns of --allow-env (base/spec_text/rank_env.h).
    std::vector<PathRoot> plugin_dirs;        // Directories of allowed plug-ins.
    // Directories that must contain all other paths; empty: no restriction.
    std::vector<PathRoot> path_roots;
    SpawnRank spawn = RankProcess::Spawn;
    ReadUsedBytes used_bytes;  // GPU memory in use; null: unknown.
    InternalErrors errors;
    bool own_thread = true;  // False: the owner makes all calls and calls Turn() instead of the loop.
  };

  RankSupervisor(Options options, RankLogs* logs, RankEvents* events, Clock* clock);
  ~RankSupervisor();  // Kills remaining ranks without a grace period.

  // Ranks that still run after `limit` are stopped and count as failed.
  void Launch(v1::Launch launch, absl::Duration limit = absl::InfiniteDuration());
  void Stop(v1::Stop stop);
  void Locate(v1::Locate locate);
  void Trace(v1::Trace trace);
  void StoreValue(v1::RendezvousValue value);
  void SetConnected(bool connected);

  // Stops all ranks and refuses further launches. A second call with a shorter grace period shortens it.
  void StopAll(absl::Duration grace);
  // The coordinator revoked this node: its jobs continue elsewhere, so ranks here must not save any more.
  void StopRevoked() { StopEach(options_.grace, /*may_save=*/false, "the node's certificate is revoked"); }
  bool Idle();  // No process or GPU memory of any rank is left.

  // Runs one iteration of the loop; returns when the next one is due if nothing happens before. REQUIRES:
  // own_thread is false.
  absl::Duration Turn();

  // Live ranks, after all tasks posted before this call. Waits for the loop.
  std::vector<v1::HostedAttempt> HostedAttempts();
  // Register.past_attempts, in the same way. Attempts launched after this call and before HostedAttempts()
  // are in HostedAttempts().
  std::vector<AttemptId> PastAttempts();

 private:
  // An iteration takes at most a second. A longer gap than this means that the process was suspended.
  static constexpr absl::Duration kMaxIteration = absl::Seconds(3);

  using Rank = HostedRank;

  void Post(std::function<void()> task);
  void PostFor(const AttemptId& id, std::function<void()> task);
  template <typename T>
  T Ask(const std::function<T()>& question);  // Waits for the loop.
  void RunUntilSuccess(const AttemptId& id, const std::function<void()>& task);
  void Run();
  void RunPosted();
  void PollOnce(int timeout_ms);
  void TurnOnce(int timeout_ms);
  int TurnMs() const;  // Time until the loop must run again.
  void ExtendDeadlines(absl::Time now);
  void Tick(absl::Time now);
  void CheckProgress(absl::Time now);

  void Accept(const v1::Launch& launch, absl::Duration limit);
  void AcceptOrGiveUp(const v1::Launch& launch, absl::Duration limit);
  void Refuse(const v1::Launch& launch, const LaunchRefusal& refusal);
  void Start(RunningAttempt* attempt, const v1::Launch& launch, int index);
  void BeginStop(RunningAttempt* attempt, absl::Duration grace, bool may_save, const std::string& reason);
  void StopEach(absl::Duration grace, bool may_save, const std::string& reason);
  void Terminate(Rank* rank);
  void RankLeft(Rank* rank, absl::Time now);
  void HandleStop(const v1::Stop& stop);
  void HandleTrace(const v1::Trace& trace);
  void CheckExit(RunningAttempt* attempt, Rank* rank);
  void Advance(RunningAttempt* attempt, absl::Time now);
  std::vector<int> UsedDevices() const;  // One entry per used slot.

  const Options options_;
  RankLogs* const logs_;
  RankEvents* const events_;
  Clock* const clock_;

  // Used on the thread of the loop only.
  RunningAttempts attempts_;
  AttemptHistory history_;  // Rejects stale launches.
  RankReports reports_;
  bool draining_ = false;
  SuspensionWatch suspensions_{kMaxIteration};
  absl::Time connected_until_ = absl::InfiniteFuture();  // End of the last connection to the coordinator.
  absl::Time next_reap_ = absl::InfinitePast();
  absl::Time next_poll_ = absl::InfinitePast();
  // Tasks to retry after internal errors, by due time.
  std::multimap<absl::Time, std::function<void()>> retries_;

  UniqueFd wake_;
  Mutex mutex_;
  std::vector<std::function<void()>> posted_ ABSL_GUARDED_BY(mutex_);
  bool quit_ = false;   // Used on the thread of the loop only; set by a posted task.
  std::thread thread_;  // Last: it uses all of the above.
};

}  // namespace fsdpd
