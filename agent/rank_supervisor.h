// The ranks of this node: starts them, sees them end, stops them. It owns which launch is accepted, when a
// rank counts as gone, and the kill ladder (SIGTERM to the tree, SIGKILL after the grace, proof that nobody
// is left, nor what they held of a GPU's memory: freed_memory.h). What one rank is, is hosted_rank.h.
//
// Ranks of a job with checkpoints are told to leave before they get SIGTERM (LeaveOrder), so that they save
// within the grace: when the agent stops, and when a Stop allows it. SIGTERM follows when the grace is nearly
// over, soon after the first of them has left, and at once when one has died, as none can save without it.
// One that died so was not stopped, though it had been told to leave: its exit is not `cancelled`.
//
//   Launch -> RankLaunched per rank -> LaunchAcknowledged
//          -> RankReady, RankStepped ..., CheckpointSaved ..., RankExited per rank -> AttemptGone
//   A repeated Launch -> LaunchAcknowledged; a refused one -> RankExited per rank
//   Stop   -> the same end, with RankExit.cancelled; AttemptGone says that it was stopped
//
// An exception while a rank is handled is an internal error (internal_errors.h): its attempt's ranks are
// looked at again a second later, and the others are not touched.
//
// One thread runs a poll loop over the ranks' sockets and pidfds and over what is posted to it; everything
// else is that thread's alone. A rank's end wakes the loop, so it is reported at once. What a dead rank
// leaves behind is killed without grace, as nobody is left to clean up after it.
//
// When a rank fails, the others of its attempt here are told at once (PeerFailed), as they may wait for it
// for ever, and leave by themselves; their exits say so (RankExit.peer_failed), so that the first keeps the
// blame. A rank that leaves because it lost a peer (kPeerFailedExitCode) is not the cause: the next that
// fails otherwise, here or on another node, is. The rest is the coordinator's, which sends Stop. When the
// coordinator has been away for kAloneTime, what is left is stopped here: a collective without one of its
// ranks would only hold the devices.
//
// Where a rank stands is read from its flight recorder (base/flight_recorder.h): when it is asked for
// (Locate), and for its exit just before the rank is told to leave or when it has ended, whichever is first.
// What leaves runs on.
//
// Once a second each rank is looked at, and one that stands still for longer than it may (no_progress.h)
// is told of again and again until it moves. While this process, or the coordinator over which ranks of
// several nodes meet, was not there, they could not be seen to move: they are given that time again.
//
// Ranks of an attempt that is all on this node find each other, and say what of a checkpoint is on disk, here
// (own_rendezvous.h); of others that goes to the coordinator and back (StoreSet, StoreGet, StoreValue).
//
// REQUIRES: BecomeSubreaper(); one supervisor per process; `events` and `logs` outlive it.
// Thread safety: all public methods. Launch, Stop, Locate, Trace and StoreValue do not wait; their answers
// are events.
#pragma once

#include <absl/time/time.h>

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "agent/attempt.h"
#include "agent/attempt_history.h"
#include "agent/freed_memory.h"
#include "agent/hosted_rank.h"
#include "agent/internal_errors.h"
#include "agent/launch_refusal.h"
#include "agent/own_time.h"
#include "agent/path_roots.h"
#include "agent/rank_logs.h"
#include "agent/rank_process.h"
#include "agent/rendezvous_relay.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "proto/fsdpd/v1/agent.pb.h"
#include "proto/fsdpd/v1/rank.pb.h"

namespace fsdpd {

// What happens to ranks. Called on the supervisor's thread, in order; must not wait.
class RankEvents {
 public:
  virtual ~RankEvents() = default;
  // `planned`: the job's memory plan; what the rank makes of its spec itself is the same, or the versions
  // differ.
  virtual void RankLaunched(const RankId& id, const v1::RankLaunch& launch,
                            const v1::MemoryPlan& planned) = 0;
  // The launch of which `first` is the first rank here was carried out, now or before.
  virtual void LaunchAcknowledged(const RankId& first) = 0;
  virtual void RankReady(const RankId& id, const v1::RankStarted& started) = 0;
  virtual void RankStepped(const RankId& id, int world, const v1::StepReport& report) = 0;
  virtual void CheckpointSaved(const RankId& id, const v1::SavedCheckpoint& saved) = 0;  // Or failed to be.
  virtual void RankCourse(const RankId& id, const v1::StepCourse& course) = 0;           // Rank 0's.
  virtual void RankTraced(const RankId& id, const v1::StepTraced& traced) = 0;           // Or could not.
  virtual void RankMeasured(const RankId& id, const v1::PreflightDevice& device) = 0;
  virtual void RankStood(const RankId& id, const std::string& where) = 0;
  virtual void RankStill(const RankId& id, const v1::RankStill& still) = 0;
  virtual void RankExited(const RankId& id, const v1::RankExit& exit) = 0;
  // The attempt is ended since it hangs, and the rank that is to blame is here; or rank 0, where none is.
  virtual void AttemptHung(const AttemptId& id) = 0;
  virtual void AttemptGone(const AttemptId& id, bool stopped, const v1::FreedMemory& memory) = 0;
  // Of attempts that span nodes.
  virtual void StoreSet(const AttemptId& id, const v1::StoreSet& set) = 0;
  virtual void StoreGet(const AttemptId& id, const std::string& key, int64_t request) = 0;
};

class RankSupervisor {
 public:
  struct Options {
    std::string rank_binary;
    int slots = 1;
    v1::Device device = v1::DEVICE_CPU;
    std::string bind_address = "127.0.0.1";
    absl::Duration grace = absl::Seconds(5);  // When a Stop names none.
    std::set<std::string> allowed_env;        // Patterns of --allow-env (base/rank_env.h).
    std::vector<PathRoot> plugin_dirs;        // Of which jobs' plug-ins are loaded.
    std::vector<PathRoot> path_roots;         // Below which jobs' other paths lie, where there are any.
    SpawnRank spawn = RankProcess::Spawn;
    ReadUsedBytes used_bytes;  // Of GPUs; null: nobody can say.
    InternalErrors errors;
    bool own_thread = true;  // False: its owner calls everything, and Turn() in place of the loop.
  };

  RankSupervisor(Options options, RankLogs* logs, RankEvents* events, Clock* clock);
  ~RankSupervisor();  // Kills what is left without grace.

  // What is left of its ranks after `limit` is ended, and has failed.
  void Launch(v1::Launch launch, absl::Duration limit = absl::InfiniteDuration());
  void Stop(v1::Stop stop);
  void Locate(v1::Locate locate);
  void Trace(v1::Trace trace);
  void StoreValue(v1::RendezvousValue value);
  void SetConnected(bool connected);

  // Stops everything and accepts nothing any more. A second call with a shorter grace shortens it.
  void StopAll(absl::Duration grace);
  // The coordinator has refused this node: its jobs continue elsewhere, so nothing here may save any more.
  void StopRevoked() { StopEach(options_.grace, /*may_save=*/false, "the node's certificate is revoked"); }
  bool Idle();  // Nothing of any rank is left.

  // One turn of the loop; after how long the next one is due, if nothing happens before. REQUIRES: no thread
  // of its own.
  absl::Duration Turn();

  // Ranks that are alive, after everything posted before this call was done. Waits for the loop.
  std::vector<v1::HostedAttempt> Hosted();
  // Register.had, likewise. What is launched after this call and before Hosted() is hosted.
  std::vector<AttemptId> Had();

 private:
  static constexpr absl::Duration kLongestTurn = absl::Seconds(3);  // It turns once a second at least.

  using Rank = HostedRank;
  struct Attempt;

  void Post(std::function<void()> task);
  void PostFor(const AttemptId& id, std::function<void()> task);
  void Insist(const AttemptId& id, const std::function<void()>& task);
  void Guard(Attempt* attempt, int rank, absl::FunctionRef<void()> step);
  void Run();
  void RunPosted();
  void PollOnce(int timeout_ms);
  void TurnOnce(int timeout_ms);
  int TurnMs() const;  // How long nothing need be looked at.
  void ExtendDeadlines(absl::Time now);
  void Tick(absl::Time now);
  void LookAtRanks(absl::Time now);
  void TellOfHang(const Attempt& attempt, const v1::Stop::Hang& hang);

  void Accept(const v1::Launch& launch, absl::Duration limit);
  void AcceptOrGiveUp(const v1::Launch& launch, absl::Duration limit);
  LaunchRefusal WhyNot(const v1::Launch& launch) const;
  void Refuse(const v1::Launch& launch, const LaunchRefusal& refusal);
  void Start(Attempt* attempt, const v1::Launch& launch, int index);
  void BeginStop(Attempt* attempt, absl::Duration grace, bool may_save, const std::string& reason);
  void StopEach(absl::Duration grace, bool may_save, const std::string& reason);
  void Terminate(Rank* rank);
  void RankLeft(Rank* rank, absl::Time now);
  void HandleStop(const v1::Stop& stop);
  void HandleLocate(const v1::Locate& locate);
  void HandleTrace(const v1::Trace& trace);
  void ReadRank(Attempt* attempt, Rank* rank, bool to_the_end);
  void HandleMessage(Attempt* attempt, Rank* rank, const v1::RankToAgent& message);
  absl::Status TakeSet(Attempt* attempt, const Rank& rank, const v1::StoreSet& set);
  absl::Status TakeGet(Attempt* attempt, const Rank& rank, const v1::StoreGet& get);
  void AnswerGet(int64_t number, const std::string& value);
  void TellOfFailedPeer(const Attempt& attempt, Rank* rank);
  void ReportExit(Attempt* attempt, Rank* rank, v1::RankExit exit);
  void CheckExit(Attempt* attempt, Rank* rank);
  void Advance(Attempt* attempt, absl::Time now);
  Attempt* Find(const AttemptId& id);
  std::vector<int> UsedDevices() const;  // One for each used slot.
  std::vector<v1::HostedAttempt> ListHosted() const;

  const Options options_;
  RankLogs* const logs_;
  RankEvents* const events_;
  Clock* const clock_;

  // The loop's own.
  std::map<AttemptId, std::unique_ptr<Attempt>> attempts_;
  AttemptHistory history_;  // Bounds what may still be launched.
  RendezvousRelay relay_;
  bool draining_ = false;
  OwnTime own_time_{kLongestTurn};
  absl::Time connected_until_ = absl::InfiniteFuture();  // When the coordinator was last there.
  absl::Time next_reap_ = absl::InfinitePast();
  absl::Time next_look_ = absl::InfinitePast();
  std::multimap<absl::Time, std::function<void()>> retries_;  // After internal errors, by when they are due.

  UniqueFd wake_;
  Mutex mutex_;
  std::vector<std::function<void()>> posted_ ABSL_GUARDED_BY(mutex_);
  bool quit_ = false;   // The loop's own, set by a posted task.
  std::thread thread_;  // Last: it uses all of the above.
};

}  // namespace fsdpd
