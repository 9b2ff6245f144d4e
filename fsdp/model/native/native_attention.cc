#include "fsdp/model/native/native_attention.h"

#include <ATen/SDPBackend.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/_flash_attention_backward.h>
#include <ATen/ops/_flash_attention_forward.h>
#include <ATen/ops/_fused_sdp_choice.h>
#include <ATen/ops/_scaled_dot_product_cudnn_attention.h>
#include <ATen/ops/_scaled_dot_product_cudnn_attention_backward.h>
#include <ATen/ops/_scaled_dot_product_efficient_attention.h>
#include <ATen/ops/_scaled_dot_product_efficient_attention_backward.h>
#include <ATen/ops/_scaled_dot_product_flash_attention.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_backward.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/logaddexp.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>
#include <utility>

#include "base/check.h"
#include "fsdp/kernels/attention/join_attention.h"
#include "fsdp/torch/scalar_type.h"

namespace fsdpd {
namespace {

constexpr double kNoDropout = 0;

// View that swaps [batch, tokens, heads, head_size] and the kernels' [batch, heads, tokens, head_size].
at::Tensor Swapped(const at::Tensor& x) { return x.transpose(1, 2); }
at::Tensor TokensFirst(const at::Tensor& x) { return Swapped(x).contiguous(); }

AttentionInput HeadsFirst(const AttentionInput& input) {
  return {Swapped(input.q), Swapped(input.k), Swapped(input.v), input.causal, input.scale};
}

// Repeats key or value heads, [batch, kv_heads, ...], for each query head that reads them; and its backward.
at::Tensor RepeatHeads(const at::Tensor& x, int64_t heads) {
  return x.size(1) == heads ? x : x.repeat_interleave(heads / x.size(1), 1);
}
at::Tensor SumHeads(const at::Tensor& grad, int64_t kv_heads) {
  if (grad.size(1) == kv_heads) return grad;
  return grad.unflatten(1, {kv_heads, grad.size(1) / kv_heads}).sum(2);
}

double Scale(const AttentionInput& x) {
  return x.scale.value_or(1 / std::sqrt(static_cast<double>(x.q.size(-1))));
}

// Masked scores in fp32, for tensors with heads first; k is repeated already.
at::Tensor Scores(const AttentionInput& x, const at::Tensor& k) {
  const int64_t sequence = x.q.size(2);
  at::Tensor scores = at::matmul(x.q.to(at::kFloat), k.to(at::kFloat).transpose(-2, -1)).mul_(Scale(x));
  if (!x.causal) return scores;
  const at::Tensor future = at::ones({sequence, sequence}, scores.options().dtype(at::kBool)).triu(1);
  return scores.masked_fill_(future, -std::numeric_limits<double>::infinity());
}

AttentionOutput ComposedForward(const AttentionInput& x) {
  const int64_t heads = x.q.size(1);
  at::Tensor scores = Scores(x, RepeatHeads(x.k, heads));
  const at::Tensor log_sum_exp = at::logsumexp(scores, {-1}, /*keepdim=*/true);
  const at::Tensor weights = scores.sub_(log_sum_exp).exp_();
  const at::Tensor out = at::matmul(weights, RepeatHeads(x.v, heads).to(at::kFloat));
  return {AttentionKernel::kComposed, out.to(x.q.scalar_type()), log_sum_exp, {}, {}, {}};
}

AttentionInput ComposedBackward(const at::Tensor& grad_out, const AttentionInput& x, const at::Tensor& out,
                                const at::Tensor& log_sum_exp) {
  const int64_t heads = x.q.size(1), kv_heads = x.k.size(1);
  const at::ScalarType type = x.q.scalar_type();
  const at::Tensor k = RepeatHeads(x.k, heads), grad = grad_out.to(at::kFloat);
  const at::Tensor weights = Scores(x, k).sub_(log_sum_exp).exp_();
  const at::Tensor grad_v = at::matmul(weights.transpose(-2, -1), grad);
  // Gradient of the weights.
  at::Tensor grad_scores = at::matmul(grad, RepeatHeads(x.v, heads).to(at::kFloat).transpose(-2, -1));
  grad_scores.sub_((grad * out).sum(-1, /*keepdim=*/true)).mul_(weights).mul_(Scale(x));
  const at::Tensor grad_q = at::matmul(grad_scores, k.to(at::kFloat));
  const at::Tensor grad_k = at::matmul(grad_scores.transpose(-2, -1), x.q.to(at::kFloat));
  return {grad_q.to(type), SumHeads(grad_k, kv_heads).to(type), SumHeads(grad_v, kv_heads).to(type)};
}

AttentionOutput HostForward(const AttentionInput& x) {
  auto [out, log_sum_exp] =
      at::_scaled_dot_product_flash_attention_for_cpu(x.q, x.k, x.v, kNoDropout, x.causal,
                                                      /*attn_mask=*/std::nullopt, x.scale);
  return {AttentionKernel::kHost, std::move(out), std::move(log_sum_exp), {}, {}, {}};
}

AttentionOutput CudnnForward(const AttentionInput& x) {
  auto result = at::_scaled_dot_product_cudnn_attention(x.q, x.k, x.v, /*attn_bias=*/{},
                                                        /*compute_log_sumexp=*/true, kNoDropout, x.causal,
                                                        /*return_debug_mask=*/false, x.scale);
  return {AttentionKernel::kCudnn, std::get<0>(result), std::get<1>(result),
          std::get<6>(result),     std::get<7>(result), {}};
}

AttentionOutput FlashForward(const AttentionInput& x) {
  auto result = at::_scaled_dot_product_flash_attention(x.q, x.k, x.v, kNoDropout, x.causal,
                                                        /*return_debug_mask=*/false, x.scale);
  return {AttentionKernel::kFlash, std::get<0>(result), std::get<1>(result),
          std::get<6>(result),     std::get<7>(result), {}};
}

AttentionOutput EfficientForward(const AttentionInput& x) {
  const int64_t heads = x.q.size(1);
  auto [out, log_sum_exp, seed, offset] = at::_scaled_dot_product_efficient_attention(
      x.q, RepeatHeads(x.k, heads), RepeatHeads(x.v, heads), /*attn_bias=*/{}, /*compute_log_sumexp=*/true,
      kNoDropout, x.causal, x.scale);
  return {AttentionKernel::kEfficient, std::move(out),
          std::move(log_sum_exp),      std::move(seed),
          std::move(offset),           {}};
}

AttentionInput EfficientBackward(const at::Tensor& grad, const AttentionInput& x, const AttentionOutput& y,
                                 const at::Tensor& out) {
  const int64_t heads = x.q.size(1), kv_heads = x.k.size(1);
  auto [q, k, v, bias] = at::_scaled_dot_product_efficient_attention_backward(
      grad, x.q, RepeatHeads(x.k, heads), RepeatHeads(x.v, heads), /*attn_bias=*/at::Tensor(), out,
      y.log_sum_exp, y.seed, y.offset, kNoDropout, {true, true, true, false}, x.causal, x.scale);
  return {std::move(q), SumHeads(k, kv_heads), SumHeads(v, kv_heads)};
}

AttentionOutput RunForward(const AttentionInput& x, AttentionKernel kernel) {
  switch (kernel) {
    case AttentionKernel::kHost:
      return HostForward(x);
    case AttentionKernel::kCudnn:
      return CudnnForward(x);
    case AttentionKernel::kFlash:
      return FlashForward(x);
    case AttentionKernel::kEfficient:
      return EfficientForward(x);
    case AttentionKernel::kComposed:
      return ComposedForward(x);
    case AttentionKernel::kFlashOfDocuments:
      break;
  }
  FSDPD_CHECK(false);  // It takes packed tokens of all samples, without a batch dimension.
}

// For tensors with heads first.
std::tuple<at::Tensor, at::Tensor, at::Tensor> RunBackward(const at::Tensor& grad, const AttentionInput& x,
                                                           const AttentionOutput& y) {
  const at::Tensor out = Swapped(y.out), none;
  const int64_t queries = x.q.size(2), keys = x.k.size(2);
  switch (y.kernel) {
    case AttentionKernel::kHost:
      return at::_scaled_dot_product_flash_attention_for_cpu_backward(grad, x.q, x.k, x.v, out, y.log_sum_exp,
                                                                      kNoDropout, x.causal,
                                                                      /*attn_mask=*/std::nullopt, x.scale);
    case AttentionKernel::kCudnn:
      return at::_scaled_dot_product_cudnn_attention_backward(
          grad, x.q, x.k, x.v, out, y.log_sum_exp, y.seed, y.offset, /*attn_bias=*/none, /*cum_seq_q=*/none,
          /*cum_seq_k=*/none, queries, keys, kNoDropout, x.causal, x.scale);
    case AttentionKernel::kFlash:
      return at::_scaled_dot_product_flash_attention_backward(grad, x.q, x.k, x.v, out, y.log_sum_exp,
                                                              /*cum_seq_q=*/none, /*cum_seq_k=*/none, queries,
                                                              keys, kNoDropout, x.causal, y.seed, y.offset,
                                                              x.scale);
    case AttentionKernel::kEfficient: {
      AttentionInput grads = EfficientBackward(grad, x, y, out);
      return {std::move(grads.q), std::move(grads.k), std::move(grads.v)};
    }
    case AttentionKernel::kComposed: {
      AttentionInput grads = ComposedBackward(grad, x, out, y.log_sum_exp);
      return {std::move(grads.q), std::move(grads.k), std::move(grads.v)};
    }
    case AttentionKernel::kFlashOfDocuments:
      break;
  }
  FSDPD_CHECK(false);
}

// Tokens [begin, begin + count) of the micro-batch as a batch of one sequence.
at::Tensor TokensOf(const at::Tensor& x, int64_t begin, int64_t count) {
  return x.flatten(0, 1).narrow(0, begin, count).unsqueeze(0);
}

AttentionInput TokensOf(const AttentionInput& x, int64_t begin, int64_t count) {
  return {TokensOf(x.q, begin, count), TokensOf(x.k, begin, count), TokensOf(x.v, begin, count), x.causal,
          x.scale};
}

// Calls run(index, first token, tokens) for each document of x's micro-batch.
template <typename Run>
void ForEachDocument(const std::vector<int64_t>& starts, const at::Tensor& x, Run run) {
  const int64_t tokens = x.size(0) * x.size(1);
  for (int64_t row = 0; row < x.size(0); ++row) {  // No document spans two rows, which are different samples.
    FSDPD_CHECK(std::binary_search(starts.begin(), starts.end(), row * x.size(1)));
  }
  for (size_t d = 0; d < starts.size(); ++d) {
    const int64_t end = d + 1 < starts.size() ? starts[d + 1] : tokens;
    FSDPD_CHECK(end > starts[d]);
    run(d, starts[d], end - starts[d]);
  }
}

// The log-sum-exp as [micro_batch, heads, tokens], whatever the kernel's shape; one kernel pads its rows.
at::Tensor LogSumExpOf(const AttentionOutput& of, int64_t tokens) {
  const at::Tensor rows = of.log_sum_exp.dim() == 4 ? of.log_sum_exp.squeeze(-1) : of.log_sum_exp;
  return rows.narrow(2, 0, tokens);
}

void JoinByOperators(AttentionOutput* first, AttentionOutput* second, const at::Tensor& out) {
  const int64_t tokens = out.size(1);
  const at::Tensor of_first = LogSumExpOf(*first, tokens), of_second = LogSumExpOf(*second, tokens);
  const at::Tensor both = at::logaddexp(of_first, of_second);
  const auto weighted = [&](const AttentionOutput& of, const at::Tensor& log_sum_exp) {
    return of.out * (log_sum_exp - both).exp_().transpose(1, 2).unsqueeze(-1);  // In fp32.
  };
  out.copy_(weighted(*first, of_first).add_(weighted(*second, of_second)));
  of_first.copy_(both);
  of_second.copy_(both);
}

// For documents of a single token, LibTorch's forward uses another layout of queries than its backward
// expects, so a maximum length of at least two is passed.
constexpr int64_t kLeastLongest = 2;

int64_t LongestOf(const Documents& documents, const at::Tensor& x) {
  int64_t longest = kLeastLongest;
  ForEachDocument(documents.starts, x, [&](size_t /*number*/, int64_t /*begin*/, int64_t count) {
    longest = std::max(longest, count);
  });
  return longest;
}

// cuDNN has a variable-length form too, but LibTorch builds a new plan for every number of documents and
// longest document: for almost every micro-batch.
bool TakesDocumentsAtOnce(const AttentionInput& input, const Documents& documents) {
  if (!documents.bounds.defined() || !input.causal) return false;
  const AttentionKernel choice = ChooseAttentionKernel(input);
  return (choice == AttentionKernel::kCudnn || choice == AttentionKernel::kFlash) &&
         input.q.size(-1) % 8 == 0;
}

AttentionOutput DocumentsForward(const AttentionInput& x, const Documents& documents) {
  const int64_t longest = LongestOf(documents, x.q);
  FSDPD_CHECK(documents.bounds.numel() == static_cast<int64_t>(documents.starts.size()) + 1);
  auto [out, log_sum_exp, seed, offset, debug] =
      at::_flash_attention_forward(x.q.flatten(0, 1), x.k.flatten(0, 1), x.v.flatten(0, 1), documents.bounds,
                                   documents.bounds, longest, longest, kNoDropout, x.causal,
                                   /*return_debug_mask=*/false, x.scale);
  return {AttentionKernel::kFlashOfDocuments,
          out.unflatten(0, x.q.sizes().slice(0, 2)),
          std::move(log_sum_exp),
          std::move(seed),
          std::move(offset),
          {}};
}

// Gradients of a group's documents, with the tokens of all rows concatenated.
AttentionInput GroupBackward(const at::Tensor& grad_out, const AttentionInput& x, const AttentionOutput& y,
                             const at::Tensor& all_bounds, const DocumentGroup& group) {
  const auto of = [&](const at::Tensor& rows) {
    return rows.flatten(0, 1).narrow(0, group.begin, group.tokens);
  };
  at::Tensor bounds = all_bounds.narrow(0, static_cast<int64_t>(group.first), group.documents + 1);
  if (group.begin > 0) bounds = bounds - group.begin;
  FSDPD_CHECK(y.log_sum_exp.dim() == 2);  // [heads, tokens]
  const at::Tensor log_sum_exp = y.log_sum_exp.narrow(1, group.begin, group.tokens).contiguous();
  const int64_t longest = std::max<int64_t>(kLeastLongest, group.longest);
  auto [q, k, v] = at::_flash_attention_backward(of(grad_out), of(x.q), of(x.k), of(x.v), of(y.out),
                                                 log_sum_exp, bounds, bounds, longest, longest, kNoDropout,
                                                 x.causal, y.seed, y.offset, x.scale);
  return {std::move(q), std::move(k), std::move(v)};
}

// Processes groups of documents, because LibTorch pads the fp32 gradients of each document: padding tokens,
// which are documents of one token, would need more memory than everything else.
AttentionInput DocumentsBackward(const at::Tensor& grad_out, const AttentionInput& x,
                                 const AttentionOutput& y, const Documents& documents) {
  const std::vector<DocumentGroup> groups = GroupsOf(documents.starts, x.q.size(0) * x.q.size(1));
  if (groups.size() == 1) {
    const AttentionInput grads = GroupBackward(grad_out, x, y, documents.bounds, groups[0]);
    const auto whole = [](const at::Tensor& grad, const at::Tensor& like) {
      return grad.contiguous().view(like.sizes());
    };
    return {whole(grads.q, x.q), whole(grads.k, x.k), whole(grads.v, x.v)};
  }
  const auto like = [](const at::Tensor& of) { return at::empty(of.sizes(), of.options()); };
  const AttentionInput all = {like(x.q), like(x.k), like(x.v)};
  for (const DocumentGroup& group : groups) {
    const AttentionInput grads = GroupBackward(grad_out, x, y, documents.bounds, group);
    const auto put = [&](const at::Tensor& to, const at::Tensor& grad) {
      to.flatten(0, 1).narrow(0, group.begin, group.tokens).copy_(grad);
    };
    put(all.q, grads.q);
    put(all.k, grads.k);
    put(all.v, grads.v);
  }
  return all;
}

// Moves a document's log-sum-exp into one tensor for all, [tokens, heads], if its kernel stores it densely:
// one tensor per document would vary in number from step to step. In the kernel's order, as its backward
// expects.
void PackRows(int64_t begin, int64_t count, const at::Tensor& all, AttentionOutput* own) {
  const at::Tensor& rows = own->log_sum_exp;
  if (!rows.is_non_overlapping_and_dense() || rows.numel() != count * all.size(1)) return;
  const at::Tensor place = all.narrow(0, begin, count).as_strided(rows.sizes(), rows.strides());
  own->log_sum_exp = place.copy_(rows);
}

}  // namespace

AttentionKernel ChooseAttentionKernel(const AttentionInput& input) {
  if (!input.q.is_cuda()) return AttentionKernel::kHost;
  const AttentionInput x = HeadsFirst(input);
  const auto choice = static_cast<at::SDPBackend>(
      at::_fused_sdp_choice(x.q, x.k, x.v, /*attn_mask=*/{}, kNoDropout, x.causal, /*scale=*/std::nullopt,
                            /*enable_gqa=*/x.q.size(1) != x.k.size(1)));
  // Kernels that would need padded heads are not used; kComposed handles those heads.
  const bool whole_heads = x.q.size(-1) % 8 == 0;
  if (choice == at::SDPBackend::cudnn_attention) return AttentionKernel::kCudnn;
  if (choice == at::SDPBackend::flash_attention && whole_heads) return AttentionKernel::kFlash;
  if (x.q.scalar_type() == at::kFloat && whole_heads) return AttentionKernel::kEfficient;
  return AttentionKernel::kComposed;
}

AttentionOutput AttentionForward(const AttentionInput& input, AttentionKernel kernel) {
  AttentionOutput output = RunForward(HeadsFirst(input), kernel);
  output.out = TokensFirst(output.out);
  return output;
}

AttentionOutput AttentionForward(const AttentionInput& input, const Documents& documents) {
  if (documents.empty()) return AttentionForward(input, ChooseAttentionKernel(input));
  if (TakesDocumentsAtOnce(input, documents)) return DocumentsForward(input, documents);
  AttentionOutput output;
  output.out = at::empty(input.q.sizes(), input.q.options());
  const at::Tensor rows =
      at::empty({input.q.size(0) * input.q.size(1), input.q.size(2)}, input.q.options().dtype(at::kFloat));
  ForEachDocument(documents.starts, input.q, [&](size_t /*number*/, int64_t begin, int64_t count) {
    const AttentionInput of = TokensOf(input, begin, count);
    AttentionOutput own = RunForward(HeadsFirst(of), ChooseAttentionKernel(of));
    PackRows(begin, count, rows, &own);
    TokensOf(output.out, begin, count).copy_(Swapped(own.out));
    own.out = at::Tensor();
    output.parts.push_back(std::move(own));
  });
  return output;
}

void JoinAttention(AttentionOutput* first, AttentionOutput* second, const at::Tensor& out) {
  const int64_t tokens = out.size(1);
  const auto packed = [tokens](const at::Tensor& rows) {
    return rows.is_contiguous() && rows.size(2) == tokens;
  };
  if (!out.is_cuda() || !packed(first->log_sum_exp) || !packed(second->log_sum_exp)) {
    return JoinByOperators(first, second, out);
  }
  FSDPD_CHECK(first->out.is_contiguous() && second->out.is_contiguous() && out[0].is_contiguous());
  at::Tensor both = at::empty_like(first->log_sum_exp);
  kernels::JoinAttentionArgs args = {};
  args.first = first->out.const_data_ptr();
  args.second = second->out.const_data_ptr();
  args.first_log_sum_exp = first->log_sum_exp.const_data_ptr<float>();
  args.second_log_sum_exp = second->log_sum_exp.const_data_ptr<float>();
  args.out = out.mutable_data_ptr();
  args.log_sum_exp = both.mutable_data_ptr<float>();
  args.samples = out.size(0);
  args.tokens = tokens;
  args.heads = out.size(2);
  args.head_size = out.size(3);
  args.out_stride = out.stride(0);
  args.type = DTypeOf(out.scalar_type());
  kernels::JoinAttention(args, kernels::CurrentStream(out.get_device()));
  second->log_sum_exp = both.view(second->log_sum_exp.sizes());
  first->log_sum_exp = std::move(both);
}

AttentionInput AttentionBackward(const at::Tensor& grad_out, const AttentionInput& input,
                                 const AttentionOutput& output, const Documents& documents) {
  if (output.kernel == AttentionKernel::kFlashOfDocuments)
    return DocumentsBackward(grad_out, input, output, documents);
  if (documents.empty()) {
    const auto [q, k, v] = RunBackward(Swapped(grad_out), HeadsFirst(input), output);
    return {TokensFirst(q), TokensFirst(k), TokensFirst(v)};
  }
  const auto like = [](const at::Tensor& x) { return at::empty(x.sizes(), x.options()); };
  const AttentionInput grads = {like(input.q), like(input.k), like(input.v)};
  ForEachDocument(documents.starts, input.q, [&](size_t number, int64_t begin, int64_t count) {
    AttentionOutput own = output.parts.at(number);
    own.out = TokensOf(output.out, begin, count);
    const AttentionInput into = TokensOf(grads, begin, count);
    const auto [q, k, v] = RunBackward(Swapped(TokensOf(grad_out, begin, count)),
                                       HeadsFirst(TokensOf(input, begin, count)), own);
    into.q.copy_(Swapped(q));
    into.k.copy_(Swapped(k));
    into.v.copy_(Swapped(v));
  });
  return grads;
}

}  // namespace fsdpd
