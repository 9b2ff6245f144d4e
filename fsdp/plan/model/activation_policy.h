// What layers keep from their forward to their backward, and where: the spec's policy, which knows blocks by
// number. Embedding and head have no part in it: they keep next to nothing, or would pay a vocabulary's
// product.
#pragma once

#include "fsdp/plan/model/model_facts.h"

namespace fsdpd {

// Units that have a choice: the model's layers.
int64_t BlocksOf(const ModelFacts& model);

// How much of what unit `unit` computes its backward computes again. Offloaded blocks recompute selectively
// at most; of the others the first Spec::recompute_layers use the spec's, and those after them the next
// cheaper.
Recompute RecomputeOf(const Spec& spec, const ModelFacts& model, int unit);

// What the unit keeps of a micro-batch, in bytes.
int64_t SavedBytesOf(const Spec& spec, const ModelFacts& model, int unit);

// Whether what the unit keeps is in host memory between the two: of Spec::offloaded_layers of the blocks,
// spread evenly, so that the link has about as much to do in each part of a pass. The last one is not among
// them unless all are: its backward comes at once.
bool OffloadsActivations(const Spec& spec, const ModelFacts& model, int unit);

// Why no layer of such a model can keep anything in host memory; empty where layers can.
std::string WhyLayersStay(const ModelConfig& model);

// Each tensor of it begins there at a multiple of so many bytes.
constexpr int64_t kSavedAlignBytes = 256;

// Room in host memory for what the unit keeps of a micro-batch; 0: it does not lie there.
int64_t OffloadedBytes(const Spec& spec, const ModelFacts& model, int unit);

}  // namespace fsdpd
