// One rank on this node: its process, the socket to it, its flight recorder and its final message. It owns
// how a launch becomes a process, what the end of the socket means and how an exit is described. The
// supervisor decides when these things happen and what follows for other ranks (rank_supervisor.h).
//
//   Start -> Send, link->Receive, Position, CheckProgress ... -> ExitOf, after the process has ended -> gone
//
// Not thread-safe; the supervisor's thread owns it.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "agent/hang/no_progress.h"
#include "agent/launch/attempt.h"
#include "agent/ranks/freed_memory.h"
#include "agent/ranks/rank_body.h"
#include "agent/ranks/rank_link.h"
#include "base/unique_fd.h"
#include "proto/fsdpd/v1/agent.pb.h"
#include "proto/fsdpd/v1/rank.pb.h"

namespace fsdpd {

struct HostedRank {
  // Expected time from SIGKILL to the end; usually milliseconds.
  static constexpr absl::Duration kEndsWithin = absl::Seconds(1);

  RankId id;
  int device = 0;
  std::unique_ptr<RankBody> process;  // Null if it could not be started.
  std::unique_ptr<RankLink> link;     // Null once either side has ended it.
  UniqueFd flight;                    // Flight recorder; invalid if it could not be created.
  std::string position;               // Position when it was stopped, for RankExit.position; "" if unknown.
  std::string final_error;  // RankFinished.error, or the protocol violation for which the agent killed it.
  std::optional<v1::BadStep> bad_step;        // RankFinished.bad_step.
  std::optional<v1::ErrorClass> fault;        // RankFinished.error_class.
  bool finished = false;                      // RankFinished was received.
  int64_t last_step = 0;                      // Step of its newest report; 0: none.
  std::optional<v1::StepReport> last_report;  // Rank 0 only.
  int64_t first_counted_step = 0;             // First step that was not skipped as a bad step.
  bool peer_failure_sent = false;             // Was notified that another rank of the attempt failed.
  bool terminated = false;                    // SIGTERM was sent.
  bool exit_reported = false;
  bool gone = false;                                 // No process of its tree is left.
  absl::Time killed_at = absl::InfiniteFuture();     // The first Kill().
  absl::Time next_tree_read = absl::InfinitePast();  // When its process tree is read next.
  FreedMemory memory;                                // The slot is free once this is settled.
  std::optional<NoProgress> no_progress;             // Set if the job has hang detection.
  Evidence evidence;                                 // Evidence of the current hang; null: not started.
  bool no_progress_logged = false;                   // The current hang was logged.

  bool released() const { return gone && memory.settled(); }

  // Kills the whole process tree. Repeat until it is gone: it may fork meanwhile.
  void Kill(absl::Time now);
  // Whether the rank survived SIGKILL: it is blocked in the kernel, where more signals have no effect.
  bool IsStuck(absl::Time now) const { return !gone && now - killed_at >= kEndsWithin; }

  // Starts the process and sends `start` as the first message. After an error there is no process. `log`:
  // file for stdout and stderr.
  absl::Status Start(const v1::RankLaunch& start, const std::string& binary, const SpawnRank& spawn,
                     v1::Device kind, const absl::StatusOr<UniqueFd>& log);

  // No-op once the link has ended.
  void Send(const v1::AgentToRank& message);
  // Closes the link for an error status; no-op for OK. After an orderly end the rank may finish; a rank that
  // violated the protocol is killed.
  void EndLink(const absl::Status& status);

  // Whether the flight recorder shows that the code of the rank is running, rather than the loading of
  // libraries. True without a flight recorder.
  bool HasStarted() const;
  // Position according to the flight recorder; "" if it has recorded no instruction.
  absl::StatusOr<std::string> Position() const;
  // Saves the position for the exit message before the rank is stopped: after an abort, lanes continue past
  // the instruction at which they were blocked.
  void SavePosition();

  void Take(const v1::StepReport& report);

  // Checks for progress. Returns a report if one is due; evidence then goes to the file `evidence_path`.
  // REQUIRES: it has a process.
  std::optional<v1::RankNoProgress> CheckProgress(const std::string& evidence_path, absl::Time now);

  // Describes how the process ended, and its final message. REQUIRES: all of its messages were read.
  // `log_tail`: the last lines of its log. If it ended before it could send a message, the last line is used
  // as its error: shared libraries are loaded, and allocate memory, before the code of the rank runs.
  v1::RankExit ExitOf(const ProcessEnd& end, std::vector<std::string> log_tail) const;
};

// The RankLaunch of the rank at `index` of the launch.
v1::RankLaunch LaunchOf(const v1::Launch& launch, int index, const std::string& bind_address);

std::string Describe(const v1::RankExit& exit);  // For a log line.

}  // namespace fsdpd
