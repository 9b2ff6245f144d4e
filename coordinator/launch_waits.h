// Launches of one attempt that agents have not acknowledged: when the coordinator sends one again, and when
// it gives up on the node.
//
// An agent that set Register.acknowledges_launches answers a Launch with RankUpdate.launch_acknowledged, or
// with the exits of the ranks that it refuses. Whatever else it reports of the attempt, and its next
// registration, answers the launch too. Agents of an older release do not acknowledge: a long restore looks
// like a lost launch there, so their launches are reported as late but neither repeated nor failed.
//
//   Sent -> Answered
//   Sent -> TakeDue, every kResendLaunchEvery -> Expired, kLaunchAnsweredWithin after Sent
//
// Times are the coordinator's monotonic clock. Not thread-safe.
#pragma once

#include <absl/time/time.h>

#include <map>
#include <string>
#include <vector>

namespace fsdpd {

// An agent acknowledges when it has started the ranks, which takes milliseconds for each of them.
constexpr absl::Duration kResendLaunchEvery = absl::Seconds(5);
// Longer than an automounted directory of the job, which the agent resolves first, usually takes to answer.
constexpr absl::Duration kLaunchAnsweredWithin = absl::Minutes(1);
// Longer than rank 0 waits for the lock of checkpoint.dir (3 min), which has a reason of its own.
constexpr absl::Duration kOlderAgentSilentFor = absl::Minutes(4);

// How LateLaunches::reason begins.
inline constexpr char kLaunchNotAcknowledged[] = "launch is not acknowledged by ";

struct LateLaunches {
  std::string reason;  // For the job; empty if none is late. Independent of the time that has passed.
  std::string node;    // The late node; empty if there are several.
};

class LaunchWaits {
 public:
  // The launch of `node` was handed to its stream. `acknowledges`: Register.acknowledges_launches.
  void Sent(const std::string& node, bool acknowledges, absl::Time now);
  void Answered(const std::string& node) { waits_.erase(node); }
  void AllAnswered() { waits_.clear(); }
  // The coordinator did not run for a while: answers may have arrived that it has not read.
  void WaitAgain(absl::Time now);

  // Nodes whose launch is to be sent again now; each is returned once per kResendLaunchEvery.
  std::vector<std::string> TakeDue(absl::Time now);
  // Whether the attempt fails because `node` has not acknowledged its launch.
  bool Expired(const std::string& node, absl::Time now) const;
  LateLaunches Late(absl::Time now) const;

 private:
  struct Wait {
    bool acknowledges = false;
    absl::Time since;      // When the launch was sent first.
    absl::Time sent_last;  // Or sent again.
  };

  std::map<std::string, Wait> waits_;  // By node.
};

}  // namespace fsdpd
