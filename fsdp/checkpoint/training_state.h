// How far a job's training has come: what a checkpoint holds beside the numbers of the model, and what a
// resumed job goes on from.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace fsdpd {

// Of so many steps, OnNonfinite.max and OnSpike.max say how many may be skipped (job.proto).
constexpr int64_t kBadStepsWithin = 1000;

struct TrainingState {
  int64_t step = 0;         // The last one that is done; the next is one more.
  int64_t samples = 0;      // Consumed, so that another batch size goes on at the right place of the data.
  int64_t steps_taken = 0;  // Less than `step` where steps were skipped.
  // With fp16: of the next step, and how many steps in a row have been finite at this scale.
  double loss_scale = 1;
  int64_t good_steps = 0;
  // Where spikes are looked for: norms of the newest steps, as many as the spec's window or fewer, the oldest
  // first; none of a step that was skipped.
  std::vector<std::optional<float>> grad_norms = {};
  // Steps among the newest kBadStepsWithin that were skipped, ascending: so many may be.
  std::vector<int64_t> skipped_nonfinite = {};  // With a loss scale, none of those that it skips.
  std::vector<int64_t> skipped_spikes = {};
};

}  // namespace fsdpd
