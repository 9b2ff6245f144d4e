// Memory components of the samples of a step timeline (StepTimeline in proto/fsdpd/v1/timeline.proto): ranks
// report them in this order, and agents export that many.
#pragma once

#include <array>

namespace fsdpd {

constexpr std::array kTimelineComponents = {
    "main_params",    "optimizer",      "gradients",    "replica",
    "gather_buffers", "reduce_buffers", "arena_unused", "activations_and_workspace"};

}  // namespace fsdpd
