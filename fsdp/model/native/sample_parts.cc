#include "fsdp/model/native/sample_parts.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <vector>

#include "base/check.h"
#include "fsdp/model/native/native_ops.h"

namespace fsdpd {
namespace {

// An uninitialized tensor of parts by rank, for `of` of [micro_batch, tokens, ...].
at::Tensor RoomFor(const at::Tensor& of, const SequencePartition& cut) {
  std::vector<int64_t> shape = of.sizes().vec();
  shape[1] = cut.chunk_tokens();
  shape.insert(shape.begin() + 1, SequencePartition::kChunksPerRank);
  shape.insert(shape.begin(), cut.ranks);
  return at::empty(shape, of.options());
}

// View of a chunk in parts by rank.
at::Tensor ChunkOf(const at::Tensor& parts, int64_t chunk, const SequencePartition& cut) {
  return parts[cut.RankOf(chunk)].select(1, cut.HalfOf(chunk));
}

}  // namespace

SequencePartition CutOf(int64_t tokens, const UnitContext& context) {
  FSDPD_CHECK(tokens % SequencePartition::kChunksPerRank == 0);
  const int64_t ranks = context.SizeOf(Group::kContext);
  return {tokens * ranks, ranks, context.IndexIn(Group::kContext)};
}

at::Tensor InOrder(const at::Tensor& parts, const SequencePartition& cut) {
  std::vector<int64_t> shape = parts.sizes().slice(1).vec();
  shape[1] = cut.chunks();
  const at::Tensor all = at::empty(shape, parts.options());
  for (int64_t chunk = 0; chunk < cut.chunks(); ++chunk)
    all.select(1, chunk).copy_(ChunkOf(parts, chunk, cut));
  return all.flatten(1, 2);
}

at::Tensor GatherSamples(const at::Tensor& own, UnitContext* context) {
  const SequencePartition cut = CutOf(own.size(1), *context);
  const at::Tensor parts = RoomFor(own, cut);
  parts[cut.rank].flatten(1, 2).copy_(own);
  context->AllGather(Group::kContext, parts);
  return InOrder(parts, cut);
}

at::Tensor SumOfSamples(const at::Tensor& grads, UnitContext* context) {
  const SequencePartition cut = CutOf(grads.size(1) / context->SizeOf(Group::kContext), *context);
  const at::Tensor sent = RoomFor(grads, cut), received = at::empty_like(sent);
  for (int64_t chunk = 0; chunk < cut.chunks(); ++chunk)
    ChunkOf(sent, chunk, cut).copy_(grads.narrow(1, chunk * cut.chunk_tokens(), cut.chunk_tokens()));
  context->SendParts(Group::kContext, sent, received);
  return SumOfParts(sent, received, cut.rank, /*addend=*/{}).flatten(1, 2);
}

}  // namespace fsdpd
