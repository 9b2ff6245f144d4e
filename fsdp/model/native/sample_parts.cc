#include "fsdp/model/native/sample_parts.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <vector>

#include "base/check.h"
#include "fsdp/model/native/native_ops.h"

namespace fsdpd {
namespace {

// An uninitialized tensor of parts by rank, for `of` of [micro_batch, tokens, ...].
at::Tensor EmptyParts(const at::Tensor& of, const SequencePartition& partition) {
  std::vector<int64_t> shape = of.sizes().vec();
  shape[1] = partition.chunk_tokens();
  shape.insert(shape.begin() + 1, SequencePartition::kChunksPerRank);
  shape.insert(shape.begin(), partition.ranks);
  return at::empty(shape, of.options());
}

// View of a chunk in parts by rank.
at::Tensor ChunkOf(const at::Tensor& parts, int64_t chunk, const SequencePartition& partition) {
  return parts[partition.RankOf(chunk)].select(1, partition.HalfOf(chunk));
}

}  // namespace

SequencePartition PartitionOf(int64_t tokens, const UnitContext& context) {
  FSDPD_CHECK(tokens % SequencePartition::kChunksPerRank == 0);
  const int64_t ranks = context.SizeOf(Group::kContext);
  return {tokens * ranks, ranks, context.IndexIn(Group::kContext)};
}

at::Tensor InOrder(const at::Tensor& parts, const SequencePartition& partition) {
  std::vector<int64_t> shape = parts.sizes().slice(1).vec();
  shape[1] = partition.chunks();
  const at::Tensor all = at::empty(shape, parts.options());
  for (int64_t chunk = 0; chunk < partition.chunks(); ++chunk)
    all.select(1, chunk).copy_(ChunkOf(parts, chunk, partition));
  return all.flatten(1, 2);
}

at::Tensor GatherSamples(const at::Tensor& own, UnitContext* context) {
  const SequencePartition partition = PartitionOf(own.size(1), *context);
  const at::Tensor parts = EmptyParts(own, partition);
  parts[partition.rank].flatten(1, 2).copy_(own);
  context->AllGather(Group::kContext, parts);
  return InOrder(parts, partition);
}

at::Tensor SumOfSamples(const at::Tensor& grads, UnitContext* context) {
  const SequencePartition partition = PartitionOf(grads.size(1) / context->SizeOf(Group::kContext), *context);
  const at::Tensor sent = EmptyParts(grads, partition), received = at::empty_like(sent);
  for (int64_t chunk = 0; chunk < partition.chunks(); ++chunk)
    ChunkOf(sent, chunk, partition)
        .copy_(grads.narrow(1, chunk * partition.chunk_tokens(), partition.chunk_tokens()));
  context->SendParts(Group::kContext, sent, received);
  return SumOfParts(sent, received, partition.rank, /*addend=*/{}).flatten(1, 2);
}

}  // namespace fsdpd
