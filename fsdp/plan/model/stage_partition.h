// How a model's chain of units is cut into pipeline stages: contiguous runs of units, dealt out by turns to
// stages, each with ranks of its own. What goes from one run to the next is the hidden states of a
// micro-batch, the same everywhere in the chain.
//
// Pure. Work is counted without a device: what units multiply, and what they move by how much a device of
// today multiplies meanwhile. So the coordinator and each rank cut alike.
#pragma once

#include <cstdint>
#include <vector>

#include "fsdp/plan/model/model_facts.h"

namespace fsdpd {

// A micro-batch's forward and backward of a unit, in operations.
double WorkOf(const UnitFacts& unit);

// Units of each run, so that the one with most work has as little as can be, and the others are as even as
// that leaves them. REQUIRES: 1 <= runs <= the units.
std::vector<int64_t> BalancedRuns(const ModelFacts& model, int64_t runs);

// `run_units`: of each run in the chain's order. REQUIRES: each number is positive, they sum up to all units,
// each stage has equally many, and only the last stage's units borrow from another's: from the first's.
std::vector<ModelFacts> CutIntoStages(const ModelFacts& model, const std::vector<int64_t>& run_units,
                                      int64_t stages, DType hidden_type);

// The facts of the spec's model, stage by stage, as its stage_units say. Of a job without a pipeline: one.
std::vector<ModelFacts> StagesOf(const Spec& spec);

}  // namespace fsdpd
