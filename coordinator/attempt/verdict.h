// Failure attribution (verdict): the failure policy as one pure function of (job, facts about its attempt,
// presence of nodes, now). The reconciler calls it on every tick and applies the result.
//
// Cause of a failure (attempt_failure.h):
//   * A cause that was found while the attempt was up is final, unless a rank is reported to have failed
//     before it: it is stored with the job, and compared only with the facts that are still known.
//   * A step that makes the job rewind does not count as an attempt; bad_steps.h bounds it.
//
// Not counted as attempts:
//   * An agent that is asked to stop, such as that of a drained node, fails no job. The next attempt resumes
//     from the checkpoint.
//   * An attempt that an agent stopped on a coordinator's order of which nothing is stored, for example a
//     cancel that came while the disk was full. The job continues, and the node is not to blame.
//   * A launch that an agent rejects because it is stopping, or because it knows a newer attempt. In the
//     second case the coordinator's state was restored from a backup, and the next attempt is numbered after
//     the newer one.
//   * A launch that its agent reports as not delivered fails nothing and is resent
//     (AttemptFacts::TakeUndeliveredLaunch).
//
// Effect on the job:
//   * Attempts count from the newest checkpoint, including the attempt that committed it: a job that makes
//     progress each time is relaunched without limit.
//   * A job without a single valid step has failed even if every rank exited successfully; it would do so
//     again.
//   * failure_policy.h classifies the failure, and may end the job before its attempts are used up.
//   * A paused job becomes PAUSED whatever happens to its ranks (job_pause.h), unless all have finished.
//
// End of an attempt:
//   * While ranks are stopping, the job's reason names each node that is silent, or that is connected and
//     does not confirm the stop: its ranks may still run.
//   * An attempt is over when every node has confirmed it, is lost, or has answered neither the launch nor
//     the stop. Only then does its job end or queue again. PAUSED promises more and also waits for lost
//     nodes.
//   * Ranks of earlier attempts count too: PAUSED waits for them, and a cancelled job names their nodes.
#pragma once

#include <absl/strings/string_view.h>
#include <absl/time/time.h>

#include <optional>
#include <string>
#include <vector>

#include "coordinator/attempt/attempt_facts.h"
#include "coordinator/attempt/attempt_failure.h"
#include "coordinator/job/job_machine.h"
#include "coordinator/nodes/agent_lease.h"

namespace fsdpd {

// Start of the reason of a job whose ranks are gone while that cannot be stored. A silent node that returns
// with ranks replaces it.
inline constexpr char kWaitsForStore[] = "waiting only for the store: ";

struct Verdict {
  std::optional<JobEvent> event;  // Empty: nothing to do.
  std::string reason;
  std::optional<v1::Job::Failure> failure;   // To store in the job.
  bool refused = false;                      // kFail: the attempt counts as one of refused_launches.
  std::string node = {};                     // kNote: the node that the reason names, if any.
  int number_after = 0;                      // kRetry: if not 0, the argument of NumberAfter().
  bool rewinds = false;                      // kRetry: rewinds by Rewind() of bad_steps.h.
  bool drained = false;                      // kRetry: counts as one of drains_since_checkpoint.
  std::optional<v1::Job::Pause> pause = {};  // kRanksGone of a paused job: the argument of KeepPause().
  // kNote of a job that stays PAUSING: the value of Job.Pause.unconfirmed_nodes.
  std::optional<std::vector<std::string>> unconfirmed = {};
  absl::Duration retry_after = absl::ZeroDuration();  // kRetry: delay of the next attempt.
};

// Ranks of attempts before the judged one.
struct EarlierAttempts {
  std::vector<std::string> lost;     // Nodes that were lost with such ranks and have not reconnected.
  std::vector<std::string> deleted;  // Job.deleted_hosts.
  bool ending = false;               // A node that is not lost has some that are stopping.

  bool MayHoldLock() const { return !lost.empty() || !deleted.empty(); }  // The lock of checkpoint.dir.
};

// The reason of a RUNNING job.
std::string RunningReason(const AttemptFacts& facts);

// REQUIRES: HasAttempt(job.state()), and `facts` are those of its attempt.
Verdict Judge(const v1::Job& job, const AttemptFacts& facts, const PresenceOf& presence, absl::Time now,
              const VerdictOptions& options, const EarlierAttempts& earlier = {});

// The deleted nodes that the reason of a starting job names: an older release stored them only there.
std::vector<std::string> DeletedHostsIn(absl::string_view reason);

// Every node has confirmed that nothing is left, or is lost.
bool IsGone(const AttemptFacts& facts, const PresenceOf& presence);

// For an attempt whose ranks should save a checkpoint together and leave: why they no longer can; "" while
// they can.
std::string WhyNothingIsSaved(const AttemptFacts& facts, const PresenceOf& presence);

}  // namespace fsdpd
