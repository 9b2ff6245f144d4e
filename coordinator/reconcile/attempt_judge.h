// Judge of attempts: asks the verdict (verdict.h) about each attempt in each tick and applies it: stores the
// change of the job, then stops the ranks, or lets the job wait for its next attempt. It also reports
// attempts that make no steps, and shortens saves that can no longer succeed.
//
// Not thread-safe: used only by the reconciler's thread. Ownership: borrows everything in Parts.
#pragma once

#include <string>
#include <vector>

#include "base/clock.h"
#include "coordinator/attempt/verdict.h"
#include "coordinator/reconcile/attempt_book.h"
#include "coordinator/reconcile/job_table.h"
#include "coordinator/reconcile/node_health.h"
#include "coordinator/reconcile/node_presence.h"

namespace fsdpd {

class AttemptJudge {
 public:
  struct Parts {
    JobTable* jobs;
    const NodePresence* presence;
    AttemptBook* attempts;
    NodeHealth* health;
    const Clock* clock;
  };

  AttemptJudge(const VerdictOptions& options, Parts parts) : options_(options), parts_(parts) {}

  void AdvanceAll();  // Per tick.
  // REQUIRES: the job has an attempt. It may have ended, and left the table, afterwards.
  void Advance(const std::string& job);

 private:
  // Changes that require no further action are added to `notes`; CommitAll() stores them.
  void Advance(const std::string& job, std::vector<v1::Job>* notes);
  void ApplyVerdict(const Verdict& verdict, const AttemptFacts& facts, v1::Job* job) const;
  EarlierAttempts EarlierAttemptsOf(const v1::Job& job) const;
  void ReportStall(LiveJob* live, AttemptFacts* facts);
  void ShortenUselessSave(LiveJob* live, AttemptFacts* facts);

  const VerdictOptions options_;
  const Parts parts_;
};

}  // namespace fsdpd
