#include "fsdp/model/native/cut_attention.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/logaddexp.h>
#include <ATen/ops/zeros.h>

#include <utility>
#include <vector>

#include "base/check.h"
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

  AttentionOutput Forward() const {
    const at::Tensor all = GatherKeys();
    AttentionOutput output;
    output.out = at::empty(input_.q.sizes(), input_.q.options());
    for (int64_t half = 0; half < SequenceCut::kHalves; ++half) {
      AttentionOutput own = Attend(Own(half));
      AttentionOutput before;
      if (const int64_t chunk = cut_.own_chunks()[half]; chunk > 0) {
        before = Attend(Before(all, half));
        Join(&own, &before);
      }
      HalfOf(output.out, half).copy_(own.out);
      own.out = before.out = at::Tensor();
      output.parts.push_back(std::move(own));
      output.parts.push_back(std::move(before));
    }
    return output;
  }

  AttentionInput Backward(const at::Tensor& grad_out, const AttentionOutput& output) const {
    const at::Tensor all = GatherKeys();
    const at::Tensor grad_q = at::empty(input_.q.sizes(), input_.q.options());
    const at::Tensor grads = at::zeros(PartsShape(), input_.k.options().dtype(at::kFloat));
    for (int64_t half = 0; half < SequenceCut::kHalves; ++half) {
      const int64_t chunk = cut_.own_chunks()[half];
      const auto backward = [&](const AttentionInput& of, AttentionOutput part) {
        part.out = HalfOf(output.out, half);
        return AttentionBackward(HalfOf(grad_out, half), of, part);
      };
      AttentionInput own = backward(Own(half), output.parts.at(2 * half));
      AddGrads(own, chunk, 1, grads);
      if (chunk > 0) {
        const AttentionInput before = backward(Before(all, half), output.parts.at(2 * half + 1));
        AddGrads(before, 0, chunk, grads);
        own.q.add_(before.q);
      }
      HalfOf(grad_q, half).copy_(own.q);
    }
    return WithKeys(grad_q, grads);
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

  // [micro_batch, chunk, chunk's tokens, 2 kv_heads, head_size], in the sequence's order.
  at::Tensor GatherKeys() const {
    const at::Tensor parts = at::empty(PartsShape(), input_.k.options());
    const at::Tensor own = parts[cut_.rank].flatten(1, 2);
    KeysOf(own).copy_(input_.k);
    ValuesOf(own).copy_(input_.v);
    context_->AllGather(Group::kContext, parts);
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

  // [micro_batch, heads, tokens], whatever shape the kernel has it in; one pads its rows.
  at::Tensor LogSumExp(const AttentionOutput& of) const {
    const at::Tensor rows = of.log_sum_exp.dim() == 4 ? of.log_sum_exp.squeeze(-1) : of.log_sum_exp;
    return rows.narrow(2, 0, cut_.chunk_tokens());
  }

  // Each kernel's backward reads the log-sum-exp over all keys, and `own.out` is the result over all.
  void Join(AttentionOutput* own, AttentionOutput* before) const {
    const at::Tensor both = at::logaddexp(LogSumExp(*own), LogSumExp(*before));
    const auto weighted = [&](const AttentionOutput& of) {
      return of.out * (LogSumExp(of) - both).exp_().transpose(1, 2).unsqueeze(-1);  // In fp32.
    };
    own->out = weighted(*own).add_(weighted(*before));
    LogSumExp(*own).copy_(both);
    LogSumExp(*before).copy_(both);
  }

  // Of the keys and values of chunks [first, first + chunks).
  void AddGrads(const AttentionInput& grad, int64_t first, int64_t chunks, const at::Tensor& into) const {
    for (int64_t i = 0; i < chunks; ++i) {
      const at::Tensor to = ChunkOf(into, first + i);
      KeysOf(to).add_(HalfOf(grad.k, i));
      ValuesOf(to).add_(HalfOf(grad.v, i));
    }
  }

  AttentionInput WithKeys(at::Tensor grad_q, const at::Tensor& grads) const {
    const at::Tensor sum = at::empty(grads[0].sizes(), grads.options());
    context_->ReduceScatter(Group::kContext, grads, sum);
    const auto of = [&](const at::Tensor& part) { return part.to(input_.k.scalar_type()).contiguous(); };
    const at::Tensor both = sum.flatten(1, 2);
    return {std::move(grad_q), of(KeysOf(both)), of(ValuesOf(both))};
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
