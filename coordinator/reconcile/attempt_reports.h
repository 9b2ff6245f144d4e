// Reports of agents about ranks: applies them to the facts about the attempt and to the job. A report of an
// attempt that is not in the book, or of a rank on another node, has no effect. Conclusions follow in the
// next tick (attempt_judge.h).
//
// Call order: reports; then PublishPositions() and ShowSlowRanks() per tick. Not thread-safe: used only by
// the reconciler's thread. Ownership: borrows everything in Parts.
#pragma once

#include <absl/time/time.h>

#include <set>
#include <string>

#include "base/clock.h"
#include "coordinator/job/job_watch.h"
#include "coordinator/reconcile/attempt_book.h"
#include "coordinator/reconcile/attempt_judge.h"
#include "coordinator/reconcile/job_table.h"
#include "coordinator/reconcile/node_presence.h"
#include "coordinator/store/state_store.h"

namespace fsdpd {

class AttemptReports {
 public:
  struct Parts {
    JobTable* jobs;
    const NodePresence* presence;
    AttemptBook* attempts;
    AttemptJudge* judge;
    StateStore* store;
    JobBoard* board;
    const Clock* clock;
    Meters* meters;  // Null without metrics.
  };

  explicit AttemptReports(Parts parts) : parts_(parts) {}

  // `age`: how long the event was known to its agent and in transit before `received`.
  void OnUpdate(const std::string& node, const v1::RankUpdate& update, absl::Time received,
                absl::Duration age);
  void OnComputeTimes(const std::string& node, const v1::ComputeTimes& times);
  void PublishPositions();
  void ShowSlowRanks();
  void ForgetNode(const std::string& node) { bad_times_from_.erase(node); }

 private:
  void OnStep(AttemptFacts* facts, const v1::StepReport& step);
  void OnCheckpoint(const std::string& node, const v1::SavedCheckpoint& saved, AttemptFacts* facts);
  void OnRankZeroReady(const std::string& node, const v1::RankReady& ready, AttemptFacts* facts);
  void OnRankZeroExit(const AttemptFacts& facts, const v1::RankExit& exit);
  void OnPosition(const v1::RankUpdate& update, const AttemptFacts& facts);
  void KeepWarnings(const v1::StepReport& step, LiveJob* live);
  void ApplyReady(const AttemptFacts& facts, const LiveJob& live);
  void RefuseCheckpoint(const std::string& node, int64_t step, AttemptFacts* facts);

  const Parts parts_;
  std::set<std::string> bad_times_from_;  // Nodes whose refused compute times were logged.
};

}  // namespace fsdpd
