// Cause of an attempt's failure (failure attribution), as a pure function of the facts about the attempt, the
// presence of nodes and the time:
//   * The first failure is the cause. Ranks that lose a peer also fail, and their exits may arrive earlier,
//     so the cause is decided `settle` (a delay) after the first one was seen.
//   * A node that is lost, or reconnects without its ranks, fails the attempt; no rank is to blame. The peers
//     of its ranks notice first, by broken connections. Their failures are not judged while a node is
//     disconnected or until it has reported what it buffered meanwhile.
//   * Ranks that their agent stopped without an order are the cause of their peers' failures, unless those
//     came long before: an agent without its coordinator stops the remaining ranks after a failure. They are
//     not the cause of a rank that was killed before, or ended before on the same node.
//   * A rank without progress that the others wait for fails an attempt in which nothing progresses (hang.h).
//     Failures take precedence, because they end that wait.
//   * A launch that a connected agent does not acknowledge is resent, and then fails the attempt with that
//     node as its cause (launch_waits.h).
//   * A step that makes the job rewind (train.on_nonfinite or on_spike) is the cause whatever else failed:
//     every rank detects it, but a rank's report may come late.
#pragma once

#include <absl/time/time.h>

#include <optional>
#include <string>

#include "coordinator/attempt/attempt_facts.h"
#include "coordinator/nodes/agent_lease.h"

namespace fsdpd {

struct VerdictOptions {
  absl::Duration settle = absl::Milliseconds(300);  // Time for the true first failure to arrive.
  // Time for the cause to arrive if ranks report that they exited because of a peer: its agent may be starved
  // of CPU time.
  absl::Duration cause_settle = absl::Seconds(5);
  absl::Duration missing_settle =
      absl::Seconds(2);  // Time for exits that an agent resends after a reconnect.
};

// The failure of an attempt that is up, or nullopt if it has not failed or the cause may still arrive.
std::optional<v1::Job::Failure> FailureIn(const AttemptFacts& facts, const PresenceOf& presence,
                                          absl::Time now, const VerdictOptions& options);
// All agents report that no rank progresses, and all nodes are connected. A single stopped rank suffices
// after a while: others may wait for it where a long wait is normal.
std::optional<v1::Job::Failure> HangIn(const AttemptFacts& facts, int64_t stages, const PresenceOf& presence,
                                       absl::Time now);

// Returns the exit of a rank that ended because of a step's values, or null. The failures of its peers may be
// consequences of that end.
const v1::RankExit* FindBadStep(const AttemptFacts& facts);
bool HasUnfinishedRank(const AttemptFacts& facts, const NodePart& part);

v1::Job::Failure FailureOf(const AttemptFacts& facts, const v1::RankExit& exit);
v1::Job::Failure FailureWithoutRank(const AttemptFacts& facts, const std::string& node,
                                    const std::string& error);
// A coordinator ordered the stop, and may have lost the record of it: neither agent nor node is the cause.
bool WasOrdered(const v1::Job::Failure& failure);
// The failure as part of a job's reason.
std::string ReasonOf(const v1::Job::Failure& failure);
inline constexpr char kIsLost[] = " is lost";  // Follows the name of a lost node in a reason.

}  // namespace fsdpd
