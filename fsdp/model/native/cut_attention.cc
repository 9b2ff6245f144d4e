#include "fsdp/model/native/cut_attention.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include <utility>
#include <vector>

#include "base/check.h"
#include "fsdp/model/native/native_ops.h"
#include "fsdp/plan/mesh/sequence_cut.h"

namespace fsdpd {
namespace {

// Tensors with tokens first: [micro_batch, tokens, heads, head_size]. Keys and values are sent side by side,
// by rank: [ranks, micro_batch, half, chunk's tokens, 2 kv_heads, head_size].
class CutAttention {
 public:
  CutAttention(const AttentionInput& input, UnitContext* context)
      : input_(input),
        context_(context),
        ranks_(context->SizeOf(Group::kContext)),
        cut_{input.q.size(1) * ranks_, ranks_, context->IndexIn(Group::kContext)},
        kv_heads_(input.k.size(2)) {
    FSDPD_CHECK(input.causal && input.q.size(1) % SequenceCut::kHalves == 0);
  }

  // Keys travel while the rank's own chunks attend to themselves.
  AttentionOutput Forward() const {
    at::Tensor parts = OwnKeys();
    context_->Start([&] { context_->AllGather(Group::kContext, parts); });
    std::vector<AttentionOutput> own;
    for (int64_t half = 0; half < SequenceCut::kHalves; ++half) own.push_back(Attend(Own(half)));
    context_->Await();
    const at::Tensor all = InOrder(std::move(parts));
    AttentionOutput output;
    output.out = at::empty(input_.q.sizes(), input_.q.options());
    for (int64_t half = 0; half < SequenceCut::kHalves; ++half) {
      AttentionOutput before;
      if (cut_.own_chunks()[half] > 0) {
        before = Attend(Before(all, half));
        JoinAttention(&own[half], &before, HalfOf(output.out, half));
      } else {
        HalfOf(output.out, half).copy_(own[half].out);
      }
      own[half].out = before.out = at::Tensor();
      output.parts.push_back(std::move(own[half]));
      output.parts.push_back(std::move(before));
    }
    return output;
  }

  // Keys travel beside the first chunk's own backward, what others are sent of their gradients beside the
  // last's.
  AttentionInput Backward(const at::Tensor& grad_out, const AttentionOutput& output) const {
    const auto backward = [&](const AttentionInput& of, int64_t half, int64_t part) {
      AttentionOutput attended = output.parts.at(SequenceCut::kHalves * half + part);
      attended.out = HalfOf(output.out, half);
      return AttentionBackward(HalfOf(grad_out, half), of, attended);
    };
    const int64_t last = SequenceCut::kHalves - 1;
    at::Tensor parts = OwnKeys();
    const at::Tensor grad_q = at::empty(input_.q.sizes(), input_.q.options());
    const at::Tensor own_grads = at::empty(parts[cut_.rank].sizes(), parts.options());
    context_->Start([&] { context_->AllGather(Group::kContext, parts); });
    for (int64_t half = 0; half < last; ++half) Put(backward(Own(half), half, 0), half, grad_q, own_grads);
    context_->Await();
    at::Tensor all = InOrder(std::move(parts));
    const at::Tensor sent = at::zeros(PartsShape(), input_.k.options());
    at::Tensor last_before_q;
    for (int64_t half = 0; half <= last; ++half) {
      if (cut_.own_chunks()[half] == 0) continue;
      AttentionInput before = backward(Before(all, half), half, 1);
      AddGrads(before, cut_.own_chunks()[half], sent);
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
    const at::Tensor both = SumOfParts(sent, received, cut_.rank, own_grads).flatten(1, 2);
    return {grad_q, KeysOf(both), ValuesOf(both)};
  }

 private:
  std::vector<int64_t> PartsShape() const {
    return {ranks_,        input_.k.size(0), SequenceCut::kHalves, cut_.chunk_tokens(),
            2 * kv_heads_, input_.k.size(3)};
  }
  // A chunk's place among them.
  at::Tensor ChunkOf(const at::Tensor& parts, int64_t chunk) const {
    return parts[cut_.RankOf(chunk)].select(1, cut_.HalfOf(chunk));
  }
  at::Tensor KeysOf(const at::Tensor& both) const { return both.narrow(2, 0, kv_heads_); }
  at::Tensor ValuesOf(const at::Tensor& both) const { return both.narrow(2, kv_heads_, kv_heads_); }

  at::Tensor HalfOf(const at::Tensor& x, int64_t half) const {
    return x.narrow(1, half * cut_.chunk_tokens(), cut_.chunk_tokens());
  }

  // Everyone's, of which the own are there.
  at::Tensor OwnKeys() const {
    at::Tensor parts = at::empty(PartsShape(), input_.k.options());
    const at::Tensor own = parts[cut_.rank].flatten(1, 2);
    KeysOf(own).copy_(input_.k);
    ValuesOf(own).copy_(input_.v);
    return parts;
  }

  // [micro_batch, chunk, chunk's tokens, 2 kv_heads, head_size], in the sequence's order.
  at::Tensor InOrder(at::Tensor parts) const {
    std::vector<int64_t> shape = PartsShape();
    shape.erase(shape.begin());
    shape[1] = cut_.chunks();
    at::Tensor all = at::empty(shape, parts.options());
    for (int64_t chunk = 0; chunk < cut_.chunks(); ++chunk) all.select(1, chunk).copy_(ChunkOf(parts, chunk));
    return all;
  }

  AttentionInput Own(int64_t half) const {
    return {HalfOf(input_.q, half), HalfOf(input_.k, half), HalfOf(input_.v, half), /*causal=*/true};
  }
  AttentionInput Before(const at::Tensor& all, int64_t half) const {
    const at::Tensor both = all.narrow(1, 0, cut_.own_chunks()[half]).flatten(1, 2);
    return {HalfOf(input_.q, half), KeysOf(both), ValuesOf(both), /*causal=*/false};
  }
  static AttentionOutput Attend(const AttentionInput& input) {
    return AttentionForward(input, ChooseAttentionKernel(input));
  }

  // A chunk's gradients by its own queries, to where their sums over all queries are made.
  void Put(const AttentionInput& grad, int64_t half, const at::Tensor& grad_q,
           const at::Tensor& own_grads) const {
    HalfOf(grad_q, half).copy_(grad.q);
    KeysOf(own_grads.select(1, half)).copy_(grad.k);
    ValuesOf(own_grads.select(1, half)).copy_(grad.v);
  }

  // Of the keys and values of the first so many chunks.
  void AddGrads(const AttentionInput& grad, int64_t chunks, const at::Tensor& into) const {
    for (int64_t chunk = 0; chunk < chunks; ++chunk) {
      const at::Tensor to = ChunkOf(into, chunk);
      KeysOf(to).add_(HalfOf(grad.k, chunk));
      ValuesOf(to).add_(HalfOf(grad.v, chunk));
    }
  }

  const AttentionInput& input_;
  UnitContext* const context_;
  const int64_t ranks_;
  const SequenceCut cut_;
  const int64_t kv_heads_;
};

}  // namespace

AttentionOutput CutAttentionForward(const AttentionInput& input, UnitContext* context) {
  return CutAttention(input, context).Forward();
}

AttentionInput CutAttentionBackward(const at::Tensor& grad_out, const AttentionInput& input,
                                    const AttentionOutput& output, UnitContext* context) {
  return CutAttention(input, context).Backward(grad_out, output);
}

}  // namespace fsdpd
