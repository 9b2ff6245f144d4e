// Since when nothing of a rank moves, and whether that is longer than what it is in the middle of may take. A
// pure count over what its agent sees from outside: its flight recorder, its messages and its process. It
// says that a rank stands still and not why: most that do wait for another one, and which is to blame is
// judged over all ranks of the attempt, by the coordinator.
//
// A rank moves when a lane begins or ends an instruction, when its phase changes, and when it says something.
// So a slow step is no stillness: some lane of it moves. What may take long without any of it has a limit by
// phase (limit(), below).
//
//   BeginAgain -> { Look, once a second; Heard and Take as messages come } -> Told, when that is told
//
// Thread safety: none; the supervisor's thread owns it.
#pragma once

#include <absl/status/statusor.h>
#include <absl/time/time.h>

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>

#include "base/flight_recorder.h"
#include "proto/fsdpd/v1/agent.pb.h"

namespace fsdpd {

// Of a job, for each of its ranks.
struct StillBudget {
  absl::Duration step;       // restart.hang_seconds.
  int64_t rank_bytes = 0;    // That a rank reads when it loads, and writes when it saves.
  int64_t export_bytes = 0;  // That rank 0 writes when all is done.
};
// By what a launch says. Not set where the job is to be left alone.
std::optional<StillBudget> StillBudgetOf(const v1::Launch& launch);

class NoProgress {
 public:
  explicit NoProgress(StillBudget budget) : budget_(budget) {}

  // Counts from `now` on: at the start, and when this process, or what the rank may wait for, stood still.
  void BeginAgain(absl::Time now);
  void Heard(absl::Time now) { moved_ = now; }
  void Take(const v1::StepReport& report);
  // `page` is an error where it shows nothing: then messages alone count.
  void Look(const absl::StatusOr<FlightState>& page, v1::ProcessState process, absl::Time now);

  absl::Duration still(absl::Time now) const { return now - moved_; }
  absl::Duration limit() const;

  // What the coordinator is to be told of now, without evidence; nothing while all is well, and between two
  // tellings.
  std::optional<v1::RankStill> News(absl::Time now);

  // Each lane with how long it has been there, a line each. For people.
  std::string Text(absl::Time now) const;

 private:
  absl::Duration StepLimit() const;

  const StillBudget budget_;
  absl::Time moved_ = absl::InfiniteFuture();
  FlightState shown_;
  v1::ProcessState process_ = v1::PROCESS_STATE_UNSPECIFIED;
  std::map<int, absl::Time> since_;         // By lane.
  std::deque<double> step_seconds_;         // Of the newest steps.
  absl::Time told_ = absl::InfinitePast();  // InfinitePast: not, or that it is over.
};

v1::ProcessState ProcessStateOf(char state);  // As in /proc/PID/stat.

}  // namespace fsdpd
