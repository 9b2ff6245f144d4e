// Unacknowledged launches of one attempt: decides when the coordinator resends a launch, and when it fails
// the attempt because of a node.
//
// An agent that set Register.acknowledges_launches answers a Launch with RankUpdate.launch_acknowledged. Any
// other report about the attempt, and the agent's next registration, also count as an answer. Agents of an
// older release do not acknowledge: their launches are reported as late but neither resent nor failed.
//
//   Sent -> TakeDue, which returns the node every kResendLaunchEvery
//        -> Answered, or Expired kLaunchAnsweredWithin after Sent
//
// Times are the coordinator's monotonic clock. Not thread-safe.
#pragma once

#include <absl/time/time.h>

#include <map>
#include <string>
#include <vector>

namespace fsdpd {

// An agent acknowledges after it has started the ranks, which takes milliseconds per rank.
constexpr absl::Duration kResendLaunchEvery = absl::Seconds(5);
// Longer than an automounted directory of the job, which the agent resolves first, usually takes.
constexpr absl::Duration kLaunchAnsweredWithin = absl::Minutes(1);
// Longer than rank 0 waits for the lock of checkpoint.dir (3 min), which has its own reason.
constexpr absl::Duration kOlderAgentSilentFor = absl::Minutes(4);

// Prefix of LateLaunches::reason.
inline constexpr char kLaunchNotAcknowledged[] = "launch is not acknowledged by ";

struct LateLaunches {
  std::string reason;  // For the job; empty if none is late. Does not depend on the elapsed time.
  std::string node;    // The late node; empty if there are several.
};

class LaunchWaits {
 public:
  // The launch of `node` was queued on its stream. `acknowledges`: Register.acknowledges_launches.
  void Sent(const std::string& node, bool acknowledges, absl::Time now);
  void Answered(const std::string& node) { waits_.erase(node); }
  void AllAnswered() { waits_.clear(); }
  void RestartWaits(absl::Time now);

  // Returns the nodes whose launch should be resent now, each once per kResendLaunchEvery.
  std::vector<std::string> TakeDue(absl::Time now);
  // Whether the attempt fails because `node` has not acknowledged its launch.
  bool Expired(const std::string& node, absl::Time now) const;
  LateLaunches Late(absl::Time now) const;

 private:
  struct Wait {
    bool acknowledges = false;
    absl::Time since;      // When the launch was first sent.
    absl::Time sent_last;  // When it was last sent or resent.
  };

  std::map<std::string, Wait> waits_;  // By node.
};

}  // namespace fsdpd
