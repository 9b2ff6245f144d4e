// Activation checkpointing and offload policy: which activations each layer saves between forward and
// backward, and where. Derived from the spec by layer number. Embedding and head are exempt: the embedding
// saves almost nothing, and recomputing the head would repeat the vocabulary projection.
#pragma once

#include "fsdp/plan/model/model_facts.h"

namespace fsdpd {

// Number of units that the policy applies to: the transformer layers.
int64_t BlocksOf(const ModelFacts& model);

// Recompute kind of a unit. Offloaded layers use selective recompute at most. Among the others, the first
// Spec::recompute_layers use the spec's kind and the rest the next cheaper one.
Recompute RecomputeOf(const Spec& spec, const ModelFacts& model, int unit);

// Saved activations of one micro-batch, in bytes.
int64_t SavedBytesOf(const Spec& spec, const ModelFacts& model, int unit);

// Whether the unit offloads its saved activations between forward and backward. The Spec::offloaded_layers
// offloaded layers are spread evenly, to spread the load on the host link. The last layer is offloaded only
// if all are, because its backward follows immediately.
bool OffloadsActivations(const Spec& spec, const ModelFacts& model, int unit);

// Why activation offload does not support this model; empty if it does.
std::string WhyLayersStay(const ModelConfig& model);

// Alignment of each saved tensor in host memory.
constexpr int64_t kSavedAlignBytes = 256;

// Host memory for the unit's saved activations of one micro-batch; 0: the unit is not offloaded.
int64_t OffloadedBytes(const Spec& spec, const ModelFacts& model, int unit);

}  // namespace fsdpd
