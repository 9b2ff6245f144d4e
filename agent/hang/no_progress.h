// Detection of ranks that make no progress: for how long nothing in a rank has moved, and whether that
// exceeds the limit for what it is doing. A pure function of what the agent observes: the flight recorder,
// messages and process state. The coordinator decides which of the blocked ranks is to blame.
//
// A rank makes progress when a lane begins or ends an instruction, when its phase changes, and when it sends
// a message. So a slow step is not a hang: some lane moves. Operations that may take long without any of
// these have a limit per phase, see limit().
//
//   Restart -> { Poll, once a second; OnMessage and AddStep as messages arrive; TakeReport }
//
// Not thread-safe; the supervisor's thread owns it.
#pragma once

#include <absl/status/statusor.h>
#include <absl/time/time.h>

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>

#include "base/rank/flight_recorder.h"
#include "proto/fsdpd/v1/agent.pb.h"

namespace fsdpd {

// Parameters of the limits, for the ranks of one job.
struct ProgressBudget {
  absl::Duration step;       // restart.hang_seconds.
  int64_t load_bytes = 0;    // Bytes that are read before the first step, on behalf of a rank.
  int64_t save_bytes = 0;    // Bytes that a rank writes into a checkpoint.
  int64_t export_bytes = 0;  // Bytes that rank 0 writes for the final export.
};
// From the spec of the launch. Empty if hang detection is off.
std::optional<ProgressBudget> ProgressBudgetOf(const v1::Launch& launch);

class NoProgress {
 public:
  explicit NoProgress(ProgressBudget budget) : budget_(budget) {}

  // Restarts the clock: at the start, and after this process, or the coordinator that the rank may wait for,
  // was suspended or away.
  void Restart(absl::Time now);
  void OnMessage(absl::Time now) { last_progress_ = now; }
  void AddStep(const v1::StepReport& step);
  // If `state` is an error (no flight recorder), only messages count as progress.
  void Poll(const absl::StatusOr<FlightState>& state, v1::ProcessState process, absl::Time now);

  absl::Duration blocked_for(absl::Time now) const { return now - last_progress_; }
  absl::Duration limit() const;

  // Returns a report for the coordinator if one is due, without evidence. Reports repeat while there is no
  // progress; a last one follows when there is progress again.
  std::optional<v1::RankNoProgress> TakeReport(absl::Time now);

  // One line per lane with its position and for how long; for users.
  std::string Text(absl::Time now) const;

 private:
  absl::Duration StepLimit() const;

  const ProgressBudget budget_;
  absl::Time last_progress_ = absl::InfiniteFuture();
  FlightState last_state_;
  v1::ProcessState process_ = v1::PROCESS_STATE_UNSPECIFIED;
  std::map<int, absl::Time> since_;                // When each lane moved last.
  std::deque<double> step_seconds_;                // Times of the newest steps.
  absl::Time last_report_ = absl::InfinitePast();  // InfinitePast: none, or progress was reported.
};

v1::ProcessState ProcessStateOf(char state);  // `state` as in /proc/PID/stat.

}  // namespace fsdpd
