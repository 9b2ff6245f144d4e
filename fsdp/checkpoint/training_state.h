// How far a job's training has come: what a checkpoint holds beside the numbers of the model, and what a
// resumed job goes on from.
#pragma once

#include <cstdint>

namespace fsdpd {

struct TrainingState {
  int64_t step = 0;         // The last one that is done; the next is one more.
  int64_t samples = 0;      // Consumed, so that another batch size goes on at the right place of the data.
  int64_t steps_taken = 0;  // Less than `step` where steps were skipped.
  // With fp16: of the next step, and how many steps in a row have been finite at this scale.
  double loss_scale = 1;
  int64_t good_steps = 0;
};

}  // namespace fsdpd
