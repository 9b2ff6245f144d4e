#include "fsdp/model/native/context_attention.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include <utility>
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

at::Tensor HalfOf(const at::Tensor& x, int64_t half, const SequencePartition& partition) {
  return x.narrow(1, half * partition.chunk_tokens(), partition.chunk_tokens());
}

// Attention of this rank's chunks of queries: `own`, over their own keys, merged with `before`, over earlier
// keys. `out` receives the result.
template <typename Before>
AttentionOutput JoinHalves(std::vector<AttentionOutput> own, const SequencePartition& partition,
                           at::Tensor out, const Before& before) {
  AttentionOutput output;
  for (int64_t half = 0; half < SequencePartition::kChunksPerRank; ++half) {
    AttentionOutput earlier;
    if (partition.own_chunks()[half] > 0) {
      earlier = before(half);
      JoinAttention(&own[half], &earlier, HalfOf(out, half, partition));
    } else {
      HalfOf(out, half, partition).copy_(own[half].out);
    }
    own[half].out = earlier.out = at::Tensor();
    output.parts.push_back(std::move(own[half]));
    output.parts.push_back(std::move(earlier));
  }
  output.out = std::move(out);
  return output;
}

// Backward of one half (chunk) of the queries over one set of keys: its own, or the earlier ones.
AttentionInput BackwardOf(const AttentionInput& of, const at::Tensor& grad_out, const AttentionOutput& output,
                          const SequencePartition& partition, int64_t half, int64_t part) {
  AttentionOutput attended = output.parts.at(SequencePartition::kChunksPerRank * half + part);
  attended.out = HalfOf(output.out, half, partition);
  return AttentionBackward(HalfOf(grad_out, half, partition), of, attended);
}

// Tensors are tokens first: [micro_batch, tokens, heads, head_size]. Keys and values are sent packed, by
// rank: [ranks, micro_batch, half, chunk's tokens, 2 kv_heads, head_size].
class ContextAttention {
 public:
  ContextAttention(const AttentionInput& input, UnitContext* context)
      : input_(input),
        context_(context),
        partition_(PartitionOf(input.q.size(1), *context)),
        kv_heads_(input.k.size(2)) {
    FSDPD_CHECK(input.causal);
  }

  // The all-gather of keys overlaps with attention of the rank's chunks to themselves.
  AttentionOutput Forward() const {
    at::Tensor parts = OwnKeys();
    context_->Start([&] { context_->AllGather(Group::kContext, parts); });
    std::vector<AttentionOutput> own;
    for (int64_t half = 0; half < SequencePartition::kChunksPerRank; ++half) own.push_back(Attend(Own(half)));
    context_->Await();
    const at::Tensor all = InOrder(std::exchange(parts, {}), partition_);
    return JoinHalves(std::move(own), partition_, at::empty(input_.q.sizes(), input_.q.options()),
                      [&](int64_t half) { return Attend(Before(all, half)); });
  }

  // The all-gather of keys overlaps with the first chunk's backward over its own keys, the reduce-scatter of
  // their gradients with the last chunk's.
  AttentionInput Backward(const at::Tensor& grad_out, const AttentionOutput& output) const {
    const auto backward = [&](const AttentionInput& of, int64_t half, int64_t part) {
      return BackwardOf(of, grad_out, output, partition_, half, part);
    };
    const int64_t last = SequencePartition::kChunksPerRank - 1;
    at::Tensor parts = OwnKeys();
    const at::Tensor grad_q = at::empty(input_.q.sizes(), input_.q.options());
    const at::Tensor own_grads = at::empty(parts[partition_.rank].sizes(), parts.options());
    context_->Start([&] { context_->AllGather(Group::kContext, parts); });
    for (int64_t half = 0; half < last; ++half) Put(backward(Own(half), half, 0), half, grad_q, own_grads);
    context_->Await();
    at::Tensor all = InOrder(std::exchange(parts, {}), partition_);
    const at::Tensor sent = at::zeros(PartsShape(), input_.k.options());
    at::Tensor last_before_q;
    for (int64_t half = 0; half <= last; ++half) {
      if (partition_.own_chunks()[half] == 0) continue;
      AttentionInput before = backward(Before(all, half), half, 1);
      AddGrads(before, partition_.own_chunks()[half], sent);
      if (half == last) {
        last_before_q = std::move(before.q);
      } else {
        HalfOf(grad_q, half).add_(before.q);
      }
    }
    all = at::Tensor();
    const at::Tensor received = at::empty_like(sent);
    context_->Start([&] { context_->SendParts(Group::kContext, sent, received); });
    Put(backward(Own(last), last, 0), last, grad_q, own_grads);
    HalfOf(grad_q, last).add_(last_before_q);
    context_->Await();
    const at::Tensor both = SumOfParts(sent, received, partition_.rank, own_grads).flatten(1, 2);
    return {grad_q, KeysOf(both), ValuesOf(both)};
  }

 private:
  std::vector<int64_t> PartsShape() const {
    return {partition_.ranks,          input_.k.size(0), SequencePartition::kChunksPerRank,
            partition_.chunk_tokens(), 2 * kv_heads_,    input_.k.size(3)};
  }
  // View of a chunk.
  at::Tensor ChunkOf(const at::Tensor& parts, int64_t chunk) const {
    return parts[partition_.RankOf(chunk)].select(1, partition_.HalfOf(chunk));
  }
  at::Tensor KeysOf(const at::Tensor& both) const { return both.narrow(2, 0, kv_heads_); }
  at::Tensor ValuesOf(const at::Tensor& both) const { return both.narrow(2, kv_heads_, kv_heads_); }

  at::Tensor HalfOf(const at::Tensor& x, int64_t half) const { return fsdpd::HalfOf(x, half, partition_); }

  // The gather buffer, with this rank's part filled in.
  at::Tensor OwnKeys() const {
    at::Tensor parts = at::empty(PartsShape(), input_.k.options());
    const at::Tensor own = parts[partition_.rank].flatten(1, 2);
    KeysOf(own).copy_(input_.k);
    ValuesOf(own).copy_(input_.v);
    return parts;
  }

  AttentionInput Own(int64_t half) const {
    return {HalfOf(input_.q, half), HalfOf(input_.k, half), HalfOf(input_.v, half), /*causal=*/true};
  }
  AttentionInput Before(const at::Tensor& all, int64_t half) const {
    const at::Tensor both = all.narrow(1, 0, partition_.own_chunks()[half] * partition_.chunk_tokens());
    return {HalfOf(input_.q, half), KeysOf(both), ValuesOf(both), /*causal=*/false};
  }
  static AttentionOutput Attend(const AttentionInput& input) {
    return AttentionForward(input, ChooseAttentionKernel(input));
  }

  // Stores a chunk's gradients from its own queries where the sums over all queries are accumulated.
  void Put(const AttentionInput& grad, int64_t half, const at::Tensor& grad_q,
           const at::Tensor& own_grads) const {
    HalfOf(grad_q, half).copy_(grad.q);
    KeysOf(own_grads.select(1, half)).copy_(grad.k);
    ValuesOf(own_grads.select(1, half)).copy_(grad.v);
  }

  // Accumulates gradients of the keys and values of the first `chunks` chunks.
  void AddGrads(const AttentionInput& grad, int64_t chunks, const at::Tensor& into) const {
    for (int64_t chunk = 0; chunk < chunks; ++chunk) {
      const at::Tensor to = ChunkOf(into, chunk);
      KeysOf(to).add_(HalfOf(grad.k, chunk));
      ValuesOf(to).add_(HalfOf(grad.v, chunk));
    }
  }

  const AttentionInput& input_;
  UnitContext* const context_;
  const SequencePartition partition_;
  const int64_t kv_heads_;
};

// One half of the queries, with a range of tokens of the samples' keys and values.
AttentionInput KeysFrom(const AttentionInput& input, const SequencePartition& partition, int64_t half,
                        int64_t begin, int64_t count, bool causal) {
  return {HalfOf(input.q, half, partition), input.k.narrow(1, begin, count), input.v.narrow(1, begin, count),
          causal, input.scale};
}

AttentionInput OwnKeysOf(const AttentionInput& input, const SequencePartition& partition, int64_t half) {
  const int64_t tokens = partition.chunk_tokens();
  return KeysFrom(input, partition, half, partition.own_chunks()[half] * tokens, tokens, /*causal=*/true);
}

AttentionInput KeysBefore(const AttentionInput& input, const SequencePartition& partition, int64_t half) {
  return KeysFrom(input, partition, half, 0, partition.own_chunks()[half] * partition.chunk_tokens(),
                  /*causal=*/false);
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

AttentionOutput ContextAttentionForward(const AttentionInput& input, UnitContext* context) {
  return ContextAttention(input, context).Forward();
}

AttentionInput ContextAttentionBackward(const at::Tensor& grad_out, const AttentionInput& input,
                                        const AttentionOutput& output, UnitContext* context) {
  return ContextAttention(input, context).Backward(grad_out, output);
}

AttentionOutput AttendToSamples(const AttentionInput& input, const SequencePartition& partition,
                                KernelChoice choose) {
  const auto attend = [&](const AttentionInput& of) { return AttentionForward(of, choose(of)); };
  std::vector<AttentionOutput> own;
  for (int64_t half = 0; half < SequencePartition::kChunksPerRank; ++half)
    own.push_back(attend(OwnKeysOf(input, partition, half)));
  return JoinHalves(std::move(own), partition, at::empty(input.q.sizes(), input.q.options()),
                    [&](int64_t half) { return attend(KeysBefore(input, partition, half)); });
}

AttentionInput AttendToSamplesBackward(const at::Tensor& grad_out, const AttentionInput& input,
                                       const AttentionOutput& output, const SequencePartition& partition) {
  AttentionInput grads = {at::empty(input.q.sizes(), input.q.options()),
                          at::zeros(input.k.sizes(), input.k.options()),
                          at::zeros(input.v.sizes(), input.v.options())};
  const auto add_keys = [](const at::Tensor& all, int64_t begin, const at::Tensor& some) {
    all.narrow(1, begin, some.size(1)).add_(some);
  };
  for (int64_t half = 0; half < SequencePartition::kChunksPerRank; ++half) {
    const int64_t chunk = partition.own_chunks()[half];
    const AttentionInput own =
        BackwardOf(OwnKeysOf(input, partition, half), grad_out, output, partition, half, 0);
    HalfOf(grads.q, half, partition).copy_(own.q);
    add_keys(grads.k, chunk * partition.chunk_tokens(), own.k);
    add_keys(grads.v, chunk * partition.chunk_tokens(), own.v);
    if (chunk == 0) continue;
    const AttentionInput before =
        BackwardOf(KeysBefore(input, partition, half), grad_out, output, partition, half, 1);
    HalfOf(grads.q, half, partition).add_(before.q);
    add_keys(grads.k, 0, before.k);
    add_keys(grads.v, 0, before.v);
  }
  return grads;
}

}  // namespace fsdpd
