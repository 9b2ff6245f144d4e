// What the ranks of a context group have of their samples, [micro_batch, tokens, ...], chunk by chunk
// (fsdp/plan/mesh/sequence_partition.h), and whole samples in their order, [micro_batch, sequence, ...]: how
// one becomes the other. Between ranks parts lie by rank, [ranks, micro_batch, half, chunk's tokens, ...].
//
// Call with gradient mode off.
#pragma once

#include <ATen/core/Tensor.h>

#include "fsdp/model/unit/unit_context.h"
#include "fsdp/plan/mesh/sequence_partition.h"

namespace fsdpd {

// How this rank's `tokens` of each sample are cut.
SequencePartition CutOf(int64_t tokens, const UnitContext& context);

// Of parts by rank.
at::Tensor InOrder(const at::Tensor& parts, const SequencePartition& cut);

// Whole samples, of which `own` are this rank's tokens.
at::Tensor GatherSamples(const at::Tensor& own, UnitContext* context);

// From each rank's gradient of what GatherSamples gave it that of `own`: their sum, in fp32 and rounded once.
at::Tensor SumOfSamples(const at::Tensor& grads, UnitContext* context);

}  // namespace fsdpd
