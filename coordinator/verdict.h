// What the facts about an attempt mean for its job: the failure policy as one pure function of (job, facts,
// who is there, now). The reconciler asks on every tick and applies the answer.
//
//   * The failure that came first is the cause. Ranks that lose a peer fail too, and their exits may arrive
//     earlier, so a failure is judged `settle` after the first one was seen.
//   * A node that is lost, or is back without its ranks, fails the attempt; no rank is to blame. The peers of
//     its ranks see it first, by broken connections: while a node is away, and until it has told what it kept
//     meanwhile, their failures are not judged.
//   * Ranks that their agent stopped, though nobody asked for the end, are the cause of their peers'
//     failures, unless those came long before: an agent without its coordinator stops what a failure left.
//     Nor are they the cause of what was killed before, or ended before on the same node.
//   * An agent that is told to end, as that of a drained node, fails no job: its attempt does not count, and
//     the next one goes on where it saved.
//   * Nor does one that an agent stopped on a coordinator's word of which nothing is stored, as of a cancel
//     that came while the disk was full: the job goes on, and its node is not to blame.
//   * A launch that an agent refuses since it is stopping is no attempt that the job has had. Nor is one of
//     which an agent knows a newer one: the coordinator's state was restored from a backup, and the next
//     attempt is numbered after that.
//   * A launch that never came to its agent, as that says itself, fails nothing: it is sent again
//     (AttemptFacts::TakeNeverCame).
//   * A launch that a connected agent does not acknowledge is sent again, and then fails the attempt with
//     that node as its cause (launch_waits.h).
//   * What was found while the attempt was up stands, unless a rank is told to have failed before: it is
//     stored with the job, and compared only with what is known still.
//   * A job none of whose steps counted has failed, though every rank ended well, and would do so again.
//   * Attempts count from the newest checkpoint, the one that committed it among them: a job that gets
//     further each time is launched again for ever.
//   * What the failure was the fault of is failure_policy.h's, which may end the job before its attempts do.
//   * A step that its spec has the job go back from is the cause whatever else failed: every rank knows of
//     it, and one that says so may come late. It is no attempt that counts; what bounds it is its own
//     (bad_steps.h).
//   * An attempt of which nothing moves any more, on any rank, has failed by the rank that the others wait
//     for (hang.h). Failures come first, since they end that wait.
//   * A job that was paused is PAUSED whatever becomes of its ranks (job_pause.h), unless all have finished.
//   * While ranks are to leave, the job's reason names each node that is silent, or that is connected and
//     does not confirm the stop: its ranks may run on.
//   * An attempt is over when every node said so, is lost, or has answered neither the launch nor the stop;
//     only then does its job end or queue again. PAUSED says more than that, and waits for nodes that are
//     lost.
//   * Ranks of earlier attempts count too: PAUSED waits for them, and a cancelled job names their nodes.
#pragma once

#include <absl/strings/string_view.h>
#include <absl/time/time.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/attempt_facts.h"
#include "coordinator/job_machine.h"

namespace fsdpd {

enum class Presence {
  kConnected,
  kExpected,  // Not heard from since the coordinator's start, and still within its time to come back.
  kAway,      // No stream, but not for long enough to be lost.
  kLost,
};
using PresenceOf = std::function<Presence(const std::string& node)>;

struct VerdictOptions {
  absl::Duration settle = absl::Milliseconds(300);  // For the true first failure to arrive.
  // For the cause to arrive if ranks say that they left because of a peer: its agent may be starved of
  // processor time.
  absl::Duration cause_settle = absl::Seconds(5);
  absl::Duration missing_settle =
      absl::Seconds(2);  // For exits that an agent reports again after a reconnect.
};

struct Verdict {
  std::optional<JobEvent> event;  // Nothing to do when empty.
  std::string reason;
  std::optional<v1::Job::Failure> failure;   // To be kept in the job.
  bool refused = false;                      // kFail: the attempt is one more of refused_launches.
  std::string node = {};                     // kNote: the one of which it tells, where that is one.
  int number_after = 0;                      // kRetry: not 0: what NumberAfter() takes.
  bool goes_back = false;                    // kRetry: as GoBack() of bad_steps.h has it.
  bool drained = false;                      // kRetry: one more of drains_since_checkpoint.
  std::optional<v1::Job::Pause> pause = {};  // kGone of a job that was paused: as KeepPause() has it.
  // kNote of a job that stays PAUSING: Job.Pause's.
  std::optional<std::vector<std::string>> unconfirmed = {};
  absl::Duration retry_after = absl::ZeroDuration();  // kRetry: how long the next attempt waits.
};

// Ranks of attempts before the one that is judged.
struct EarlierAttempts {
  std::vector<std::string> lost;     // Nodes that were lost with such ranks, and are not back.
  std::vector<std::string> deleted;  // Job.deleted_hosts.
  bool ending = false;               // A node that is not lost has some, which were told to stop.

  bool MayHoldLock() const { return !lost.empty() || !deleted.empty(); }  // Of checkpoint.dir.
};

// Why a job is RUNNING.
std::string AllRun(const AttemptFacts& facts);

// REQUIRES: HasAttempt(job.state()), and `facts` are of its attempt.
Verdict Judge(const v1::Job& job, const AttemptFacts& facts, const PresenceOf& presence, absl::Time now,
              const VerdictOptions& options, const EarlierAttempts& earlier = {});

// The deleted nodes that the reason of a starting job names: an older release kept them only there.
std::vector<std::string> DeletedHostsIn(absl::string_view reason);

// Every node said that nothing is left, or is lost.
bool IsGone(const AttemptFacts& facts, const PresenceOf& presence);

inline constexpr char kIsLost[] = " is lost";  // How WhyNothingIsSaved() ends if a node is lost.

// Of an attempt whose ranks were told to leave and may save first, which they do together or not at all: why
// they cannot any more; empty while they can.
std::string WhyNothingIsSaved(const AttemptFacts& facts, const PresenceOf& presence);

}  // namespace fsdpd
