// Causal attention to samples that the ranks of a context group share: each has two chunks of every sequence
// (fsdp/plan/mesh/sequence_partition.h), with their queries, keys and values. Keys and values of all are
// gathered, which is little where query heads share them, and a rank's chunk of queries attends to its own
// keys, causally, and to all those before it, whole. What the two give is joined by their log-sum-exp in
// fp32: the result of one kernel over all keys, rounded once more.
//
// Where keys and values of whole samples are there already, in their order, nothing is sent.
//
// Backward gathers again, so that no rank keeps whole samples from forward to backward. Gradients of keys and
// values travel in the compute type, a rank's own chunks' added up and rounded to it first, and are added in
// fp32 between ranks.
#pragma once

#include <ATen/core/Tensor.h>

#include "fsdp/model/native/native_attention.h"
#include "fsdp/model/unit/unit_context.h"
#include "fsdp/plan/mesh/sequence_partition.h"

namespace fsdpd {

// `input`: of this rank's tokens, chunk by chunk. The unit's facts say the exchanges over Group::kContext.
AttentionOutput CutAttentionForward(const AttentionInput& input, UnitContext* context);

// As AttentionBackward, of the same tokens.
AttentionInput CutAttentionBackward(const at::Tensor& grad_out, const AttentionInput& input,
                                    const AttentionOutput& output, UnitContext* context);

// `input`: queries of this rank's tokens, keys and values of whole samples.
using KernelChoice = AttentionKernel (*)(const AttentionInput&);
AttentionOutput AttendToSamples(const AttentionInput& input, const SequencePartition& cut,
                                KernelChoice choose);

// Keys' and values' gradients are by this rank's queries, of whole samples.
AttentionInput AttendToSamplesBackward(const at::Tensor& grad_out, const AttentionInput& input,
                                       const AttentionOutput& output, const SequencePartition& cut);

}  // namespace fsdpd
