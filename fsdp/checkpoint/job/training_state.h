// Training progress of a job: what a checkpoint has in addition to the model's numbers, and what a resumed
// job continues from.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace fsdpd {

// OnNonfinite.max and OnSpike.max (job.proto) limit the skipped steps among this many.
constexpr int64_t kBadStepsWithin = 1000;

struct TrainingState {
  int64_t step = 0;  // Last completed step; the next is one more.
  // Consumed, so that a job with another batch size resumes at the right place in the data.
  int64_t samples = 0;
  int64_t steps_taken = 0;  // Optimizer updates: less than `step` if steps were skipped.
  // fp16: loss scale of the next step, and the number of consecutive finite steps at this scale.
  double loss_scale = 1;
  int64_t good_steps = 0;
  // With spike detection: norms of the newest steps, up to the spec's window, oldest first; nullopt for a
  // skipped step.
  std::vector<std::optional<float>> grad_norms = {};
  // Skipped steps among the newest kBadStepsWithin, ascending, which OnNonfinite.max and OnSpike.max limit.
  std::vector<int64_t> skipped_nonfinite = {};  // Without steps that a loss scale skips.
  std::vector<int64_t> skipped_spikes = {};
};

}  // namespace fsdpd
