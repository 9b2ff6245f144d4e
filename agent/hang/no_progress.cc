#include "agent/hang/no_progress.h"

#include <absl/strings/str_cat.h>

#include <algorithm>
#include <tuple>
#include <utility>
#include <vector>

#include "base/limits.h"
#include "base/lookup.h"
#include "base/spec_text/enum_name.h"

namespace fsdpd {
namespace {

// Default for specs of older coordinators, which do not set restart.hang_seconds.
constexpr absl::Duration kStep = absl::Seconds(30);
constexpr int kSteps = 3;  // Limit of a step, in median step times.
constexpr size_t kStepsKept = 31;
// A rank itself waits this long for its peers to start and then reports which are missing; before that,
// libraries are loaded from a cold disk.
constexpr absl::Duration kStarting = absl::Minutes(10);
// The first steps select kernels and capture CUDA graphs, on a host that may be shared.
constexpr absl::Duration kFirstSteps = absl::Minutes(10);
constexpr size_t kWarm = 5;  // Steps until the median is used; two graphs are captured before.
// The first evaluation opens files and reads the validation data from a cold disk.
constexpr absl::Duration kEvaluation = absl::Minutes(2);
// File servers may block for minutes during a failover. The rate is a lower bound at which training with
// checkpoints is still practical.
constexpr absl::Duration kFiles = absl::Minutes(10);
constexpr int64_t kSlowestFileBytesPerSecond = 20'000'000;
constexpr absl::Duration kReportEvery = absl::Milliseconds(kNoProgressReportIntervalMs);

auto Key(const LanePlace& place) {
  return std::make_tuple(place.at.step, place.at.evaluation, place.at.instruction, place.at.inside);
}

absl::Duration ForFiles(int64_t bytes) { return kFiles + absl::Seconds(bytes / kSlowestFileBytesPerSecond); }

v1::RankPhase PhaseOf(FlightPhase phase) {
  switch (phase) {
    case FlightPhase::kStarting:
      return v1::RANK_PHASE_STARTING;
    case FlightPhase::kLoading:
      return v1::RANK_PHASE_LOADING;
    case FlightPhase::kTraining:
      return v1::RANK_PHASE_TRAINING;
    case FlightPhase::kReading:
      return v1::RANK_PHASE_READING;
    case FlightPhase::kSaving:
      return v1::RANK_PHASE_SAVING;
    case FlightPhase::kEnding:
      return v1::RANK_PHASE_ENDING;
  }
  return v1::RANK_PHASE_UNSPECIFIED;
}

}  // namespace

v1::ProcessState ProcessStateOf(char state) {
  constexpr std::pair<char, v1::ProcessState> kStates[] = {
      {'T', v1::PROCESS_STATE_STOPPED}, {'t', v1::PROCESS_STATE_STOPPED}, {'D', v1::PROCESS_STATE_BLOCKED},
      {'Z', v1::PROCESS_STATE_GONE},    {'X', v1::PROCESS_STATE_GONE},    {'R', v1::PROCESS_STATE_LIVE},
      {'S', v1::PROCESS_STATE_LIVE},    {'I', v1::PROCESS_STATE_LIVE}};
  return Lookup(kStates, state, v1::PROCESS_STATE_UNSPECIFIED);
}

std::optional<ProgressBudget> ProgressBudgetOf(const v1::Launch& launch) {
  const v1::Restart& restart = launch.spec().restart();
  if (restart.has_hang_seconds() && restart.hang_seconds() == 0) return std::nullopt;
  ProgressBudget budget;
  budget.step = restart.has_hang_seconds() ? absl::Seconds(restart.hang_seconds()) : kStep;
  // Checkpoints contain a subset of these components.
  for (const v1::MemoryPlan::Component& component : launch.memory_plan().components()) {
    if (component.name() == "main_params" || component.name() == "optimizer")
      budget.save_bytes += component.bytes();
  }
  budget.export_bytes = budget.save_bytes * launch.world_size();
  // A package may contain the initial values of the whole model: its first rank on a node unpacks them.
  budget.load_bytes = launch.spec().model().has_package() ? budget.export_bytes : budget.save_bytes;
  return budget;
}

void NoProgress::Restart(absl::Time now) {
  last_progress_ = now;
  for (auto& [lane, since] : since_) since = now;
}

void NoProgress::AddStep(const v1::StepReport& step) {
  step_seconds_.push_back(step.step_seconds());
  if (step_seconds_.size() > kStepsKept) step_seconds_.pop_front();
}

void NoProgress::Poll(const absl::StatusOr<FlightState>& state, v1::ProcessState process, absl::Time now) {
  process_ = process;
  if (!state.ok()) return;
  bool moved = state->phase != last_state_.phase;
  for (const LanePlace& place : state->lanes) {
    const auto before = std::find_if(last_state_.lanes.begin(), last_state_.lanes.end(),
                                     [&](const LanePlace& each) { return each.lane == place.lane; });
    if (before != last_state_.lanes.end() && Key(*before) == Key(place)) continue;
    moved = true;
    since_[place.lane] = now;
  }
  last_state_ = *state;
  if (moved) last_progress_ = now;
}

absl::Duration NoProgress::StepLimit() const {
  if (step_seconds_.size() < kWarm) return std::max(budget_.step, kFirstSteps);
  std::vector<double> sorted(step_seconds_.begin(), step_seconds_.end());
  const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>(sorted.size() / 2);
  std::nth_element(sorted.begin(), middle, sorted.end());
  absl::Duration limit = std::max(budget_.step, kSteps * absl::Seconds(*middle));
  const bool evaluates = std::any_of(last_state_.lanes.begin(), last_state_.lanes.end(),
                                     [](const LanePlace& place) { return place.at.evaluation; });
  if (evaluates) limit = std::max(limit, kEvaluation);
  return limit;
}

absl::Duration NoProgress::limit() const {
  // A process stopped by a signal does not get the longer limit of its phase.
  if (process_ == v1::PROCESS_STATE_STOPPED) return budget_.step;
  switch (last_state_.phase) {
    case FlightPhase::kTraining:
      return StepLimit();
    case FlightPhase::kReading:
      return std::max(StepLimit(), kFiles);
    case FlightPhase::kLoading:
      return std::max(budget_.step, ForFiles(budget_.load_bytes));
    case FlightPhase::kSaving:
      return std::max(budget_.step, ForFiles(budget_.save_bytes));
    case FlightPhase::kEnding:
      return std::max(budget_.step, ForFiles(budget_.export_bytes));
    case FlightPhase::kStarting:
      break;
  }
  return std::max(budget_.step, kStarting);
}

std::optional<v1::RankNoProgress> NoProgress::TakeReport(absl::Time now) {
  v1::RankNoProgress report;
  if (blocked_for(now) <= limit()) {
    if (std::exchange(last_report_, absl::InfinitePast()) == absl::InfinitePast()) return std::nullopt;
    return report;
  }
  if (now - last_report_ < kReportEvery) return std::nullopt;
  last_report_ = now;
  report.set_no_progress_ms(absl::ToInt64Milliseconds(blocked_for(now)));
  report.set_limit_ms(absl::ToInt64Milliseconds(limit()));
  report.set_phase(PhaseOf(last_state_.phase));
  report.set_process(process_);
  report.set_position(TextOf(last_state_.lanes));
  for (const LanePlace& place : last_state_.lanes) {
    v1::LanePosition* lane = report.add_lanes();
    lane->set_lane(place.lane_name);
    lane->set_exchanges(place.exchanges);
    lane->set_step(place.at.step);
    lane->set_evaluation(place.at.evaluation);
    lane->set_instruction(place.at.instruction);
    lane->set_running(place.at.inside);
    lane->set_name(place.instruction);
  }
  return report;
}

std::string NoProgress::Text(absl::Time now) const {
  std::string text =
      absl::StrCat("no progress for ", absl::FormatDuration(blocked_for(now)), " (limit ",
                   absl::FormatDuration(limit()), " while ", ShortEnumName(PhaseOf(last_state_.phase)),
                   "); the process is ", ShortEnumName(process_), "\n");
  for (const LanePlace& place : last_state_.lanes) {
    absl::StrAppend(&text, "lane ", place.lane_name, place.at.inside ? " in " : " after ", place.instruction,
                    place.at.evaluation ? " of the evaluation after step " : " of step ", place.at.step,
                    ", instruction ", place.at.instruction, ", for ",
                    absl::FormatDuration(now - since_.at(place.lane)), "\n");
  }
  return text;
}

}  // namespace fsdpd
