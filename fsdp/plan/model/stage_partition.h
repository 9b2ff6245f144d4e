// Pipeline partition: splits a model's units into contiguous runs (model chunks) of balanced work and assigns
// them to stages round-robin (interleaved). Runs exchange the hidden states of a micro-batch, which have the
// same size everywhere in the chain.
//
// Pure. Work is estimated without a device profile: FLOPs, plus memory traffic converted by the FLOP-to-byte
// ratio of a current device. Therefore the coordinator and every rank compute the same partition.
#pragma once

#include <cstdint>
#include <vector>

#include "fsdp/plan/model/model_facts.h"

namespace fsdpd {

// Work of a unit's forward and backward for one micro-batch, in FLOPs.
double WorkOf(const UnitFacts& unit);

// Number of units per run. Minimizes the work of the largest run, then balances the others. REQUIRES: 1 <=
// runs <= the units.
std::vector<int64_t> BalancedRuns(const ModelFacts& model, int64_t runs);

// `run_units`: units per run, in chain order. REQUIRES: each number is positive, they sum to all units, every
// stage has the same number of runs, and only units of the last stage borrow from another stage: the first.
std::vector<ModelFacts> PartitionIntoStages(const ModelFacts& model, const std::vector<int64_t>& run_units,
                                            int64_t stages, DType hidden_type);

// The facts of the spec's model by stage, as partitioned by its stage_units. One entry without a pipeline.
std::vector<ModelFacts> StagesOf(const Spec& spec);

}  // namespace fsdpd
