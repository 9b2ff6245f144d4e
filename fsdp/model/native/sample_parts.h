// Context-parallel layout conversion: between a rank's chunks of its samples, [micro_batch, tokens, ...]
// (fsdp/plan/mesh/sequence_partition.h), and whole samples in order, [micro_batch, sequence, ...]. Exchanged
// tensors are ordered by rank, [ranks, micro_batch, half, chunk's tokens, ...].
//
// Call with gradient mode off.
#pragma once

#include <ATen/core/Tensor.h>

#include "fsdp/model/unit/unit_context.h"
#include "fsdp/plan/mesh/sequence_partition.h"

namespace fsdpd {

// The partition of samples of which this rank has `tokens` tokens each.
SequencePartition PartitionOf(int64_t tokens, const UnitContext& context);

// Reorders parts by rank into whole samples.
at::Tensor InOrder(const at::Tensor& parts, const SequencePartition& partition);

// Gathers whole samples; `own` are this rank's tokens.
at::Tensor GatherSamples(const at::Tensor& own, UnitContext* context);

// The backward of GatherSamples: the gradient of `own`, summed over ranks in fp32 and rounded once.
at::Tensor SumOfSamples(const at::Tensor& grads, UnitContext* context);

}  // namespace fsdpd
