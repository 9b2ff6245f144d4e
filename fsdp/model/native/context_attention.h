// Context-parallel causal attention: each rank of the context group holds two chunks of every sequence
// (fsdp/plan/mesh/sequence_partition.h), with their queries, keys and values. Keys and values are
// all-gathered, which is cheap with grouped-query attention. Each chunk of queries attends causally to its
// own chunk of keys and fully to all earlier chunks; the two results are merged by their log-sum-exp in fp32.
// The result equals one kernel over all keys, up to one more rounding.
//
// If keys and values of whole samples are already present, in order, nothing is sent.
//
// Backward gathers again, so that no rank holds whole samples between forward and backward. Gradients of keys
// and values are sent in the compute type (after summing and rounding the contributions of a rank's own
// chunks) and summed over ranks in fp32.
//
// Exchanged tensors are ordered by rank, [ranks, micro_batch, half, chunk's tokens, ...]. Call with gradient
// mode off.
#pragma once

#include <ATen/core/Tensor.h>

#include "fsdp/model/native/native_attention.h"
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

// `input`: this rank's tokens, chunk by chunk. The unit's facts list these exchanges over Group::kContext.
AttentionOutput ContextAttentionForward(const AttentionInput& input, UnitContext* context);

// Backward of ContextAttentionForward; arguments as for AttentionBackward.
AttentionInput ContextAttentionBackward(const at::Tensor& grad_out, const AttentionInput& input,
                                        const AttentionOutput& output, UnitContext* context);

// `input`: queries of this rank's tokens, keys and values of whole samples.
using KernelChoice = AttentionKernel (*)(const AttentionInput&);
AttentionOutput AttendToSamples(const AttentionInput& input, const SequencePartition& partition,
                                KernelChoice choose);

// Returns the gradients of keys and values for whole samples, as contributed by this rank's queries.
AttentionInput AttendToSamplesBackward(const at::Tensor& grad_out, const AttentionInput& input,
                                       const AttentionOutput& output, const SequencePartition& partition);

}  // namespace fsdpd
