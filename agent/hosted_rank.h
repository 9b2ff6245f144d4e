// One rank of this node: its process, the socket to it, the page that shows where it stands, and its last
// word. It owns how a launch becomes a process, what the end of the socket means and what an exit says of the
// rank. When any of this happens, and what follows from it for others, is the supervisor's
// (rank_supervisor.h).
//
//   Start -> Send, link->Receive, Where, Look ... -> ExitOf, once its process has ended -> gone
//
// Thread safety: none; the supervisor's thread owns it.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "agent/attempt.h"
#include "agent/freed_memory.h"
#include "agent/no_progress.h"
#include "agent/rank_body.h"
#include "agent/rank_link.h"
#include "base/unique_fd.h"
#include "proto/fsdpd/v1/agent.pb.h"
#include "proto/fsdpd/v1/rank.pb.h"

namespace fsdpd {

struct HostedRank {
  static constexpr absl::Duration kEndsWithin = absl::Seconds(1);  // After SIGKILL, usually milliseconds.

  RankId id;
  int device = 0;
  std::unique_ptr<RankBody> process;          // Null when it could not be started.
  std::unique_ptr<RankLink> link;             // Null once either side has ended it.
  UniqueFd flight;                            // Its page; not valid when there is none.
  std::string stood;                          // For its exit; "" while not known.
  std::string last_word;                      // RankFinished.error, or what the agent holds against the rank.
  std::optional<v1::BadStep> bad_step;        // RankFinished.bad_step.
  std::optional<v1::RankFault> fault;         // RankFinished.fault.
  bool finished = false;                      // RankFinished has come.
  int64_t last_step = 0;                      // Of its reports; 0: none.
  std::optional<v1::StepReport> last_report;  // Rank 0's.
  int64_t first_counted_step = 0;             // Of those that were not skipped for what their numbers were.
  bool told_of_peer = false;                  // That another rank of the attempt has failed.
  bool terminated = false;                    // Has got SIGTERM.
  bool exit_reported = false;
  bool gone = false;                              // Nothing of its tree is left.
  absl::Time killed_at = absl::InfiniteFuture();  // The first Kill().
  absl::Time look_at = absl::InfinitePast();      // When its tree is next looked at.
  FreedMemory memory;                             // Its slot is free once that is settled.
  std::optional<NoProgress> stillness;            // Of a job that is not left alone when it hangs.
  Evidence evidence;                              // Of this stillness; null: none was begun.
  bool told_still = false;                        // That it stands still; likewise.

  bool left() const { return gone && memory.settled(); }

  // Its whole tree. To be repeated until that is gone, since it may fork meanwhile.
  void Kill(absl::Time now);
  // SIGKILL does not end it: it is blocked in the kernel, where more signals and looks change nothing.
  bool IsStuck(absl::Time now) const { return !gone && now - killed_at >= kEndsWithin; }

  // Its process, with `start` as the first message. An error leaves none. `log`: where its output goes.
  absl::Status Start(const v1::RankLaunch& start, const std::string& binary, const SpawnRank& spawn,
                     v1::Device kind, const absl::StatusOr<UniqueFd>& log);

  // Nothing is sent once the link has ended.
  void Send(const v1::AgentToRank& message);
  // An end of the stream leaves the rank to finish; one that breaks the protocol cannot be worked with and is
  // killed. Nothing for OK.
  void EndLink(const absl::Status& status);

  // Whether its page shows that its own code runs; without one nobody knows, and it is taken to.
  bool HasBegun() const;
  // By its page; "" when it has shown no instruction.
  absl::StatusOr<std::string> Where() const;
  // Its work may go on from here while it leaves: what an abort ended is no place where it stood.
  void KeepWhere();

  void Take(const v1::StepReport& report);

  // Whether it stands still, where that is news; what else can be seen of it then goes to the file
  // `evidence_path`. REQUIRES: it has a process.
  std::optional<v1::RankStill> Look(const std::string& evidence_path, absl::Time now);

  // What its process ended with, and its last word. REQUIRES: all that it sent was read. `log_tail`: the last
  // lines of its log, of which the last one is its word where it ended before it could say any: libraries are
  // loaded, and take memory, before the rank's own code runs.
  v1::RankExit ExitOf(const ProcessEnd& end, std::vector<std::string> log_tail) const;
};

// What the rank at `index` of a launch's ranks is told.
v1::RankLaunch LaunchOf(const v1::Launch& launch, int index, const std::string& bind_address);

std::string Describe(const v1::RankExit& exit);  // For a log line.

}  // namespace fsdpd
