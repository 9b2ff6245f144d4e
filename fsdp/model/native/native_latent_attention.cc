#include "fsdp/model/native/native_latent_attention.h"

#include <ATen/ops/empty.h>

#include <cmath>
#include <utility>
#include <vector>

#include "fsdp/model/native/context_attention.h"
#include "fsdp/model/native/native_linear.h"
#include "fsdp/model/native/native_ops.h"
#include "fsdp/plan/model/latent_facts.h"

namespace fsdpd {
namespace {

// A zero-padded copy.
at::Tensor Padded(const at::Tensor& heads, int64_t width) {
  std::vector<int64_t> shape = heads.sizes().vec();
  const int64_t own = std::exchange(shape.back(), width);
  at::Tensor padded = at::empty(shape, heads.options());
  padded.narrow(-1, 0, own).copy_(heads);
  padded.narrow(-1, own, width - own).zero_();
  return padded;
}

at::Tensor Widened(const at::Tensor& heads, int64_t width) {
  return width == heads.size(-1) ? heads : Padded(heads, width);
}

at::Tensor Narrowed(const at::Tensor& heads, int64_t width) {
  return width == heads.size(-1) ? heads : heads.narrow(-1, 0, width).contiguous();
}

// [tokens x all heads]
at::Tensor FlatTokens(const at::Tensor& heads) { return heads.flatten(0, 1).flatten(1); }

// Only newer versions of cuDNN have a backward for heads wider than 128; flash attention supports up to 256.
AttentionKernel ChooseKernel(const AttentionInput& input) {
  const AttentionKernel kernel = ChooseAttentionKernel(input);
  return kernel == AttentionKernel::kCudnn ? AttentionKernel::kFlash : kernel;
}

}  // namespace

LatentAttention::LatentAttention(const LlamaConfig& config, Rotary rotary)
    : latent_(config.latent),
      rotary_(std::move(rotary)),
      heads_(config.heads),
      head_size_(config.head_size),
      kernel_size_(KernelHeadSize(config.latent)),
      scale_(config.rope_scaling.ScoreScale() / std::sqrt(static_cast<double>(config.head_size))) {}

at::Tensor LatentAttention::Queries(const LatentRows& of) const {
  return of.rows.narrow(1, 0, heads_ * head_size_)
      .unflatten(1, {heads_, head_size_})
      .unflatten(0, of.micro_batch);
}

at::Tensor LatentAttention::OwnSamples(const LatentRows& of) const {
  return of.rows.narrow(1, LatentBegin(), latent_.rank + latent_.rotary_head_size)
      .unflatten(0, of.micro_batch);
}

at::Tensor LatentAttention::KeyLatents(const LatentRows& of) const {
  if (of.samples.defined()) return of.samples.flatten(0, 1).narrow(1, 0, latent_.rank);
  return of.rows.narrow(1, LatentBegin(), latent_.rank);
}

at::Tensor LatentAttention::RotatedKey(const LatentRows& of) const {
  const at::Tensor samples = of.samples.defined() ? of.samples : OwnSamples(of);
  return samples.narrow(2, latent_.rank, latent_.rotary_head_size).unsqueeze(2);
}

at::Tensor LatentAttention::RotatedPart(const at::Tensor& heads) const {
  return heads.narrow(-1, latent_.plain_head_size, latent_.rotary_head_size);
}

void LatentAttention::Rotate(const LatentRows& of) const {
  RotatePart(rotary_, of.positions, 1, latent_.interleaved, RotatedKey(of));
  if (!HasQueryLatent()) RotatePart(rotary_, of.positions, 1, latent_.interleaved, RotatedPart(Queries(of)));
}

at::Tensor LatentAttention::SamplesOf(const LatentRows& of, UnitContext* context) const {
  return GatherSamples(OwnSamples(of), context);
}

void LatentAttention::SamplesBackward(const LatentRows& of, UnitContext* context) const {
  OwnSamples(of).copy_(SumOfSamples(of.samples, context));
}

at::Tensor LatentAttention::HeadsOf(const at::Tensor& latents, const at::Tensor& norm,
                                    const at::Tensor& matrix, at::Tensor* rstd) const {
  Normed normed = RmsNormForward(latents.contiguous(), norm, kLatentNormEpsilon);
  *rstd = std::move(normed.rstd);
  return LinearForward(normed.y, Matrices{matrix}).unflatten(1, {heads_, -1});
}

void LatentAttention::MakeKeys(const LatentRows& of, const LatentParams& params, LatentHeads* heads) const {
  const at::Tensor made = HeadsOf(KeyLatents(of), params.kv_norm, params.wkv_b, &heads->kv_rstd);
  heads->kv = made.unflatten(0, {of.micro_batch[0], -1});
}

void LatentAttention::MakeQueries(const LatentRows& of, const LatentParams& params,
                                  LatentHeads* heads) const {
  if (!HasQueryLatent()) return;
  const at::Tensor latents = of.rows.narrow(1, 0, latent_.query_rank);
  heads->q = HeadsOf(latents, params.q_norm, params.wq_b, &heads->q_rstd).unflatten(0, of.micro_batch);
  RotatePart(rotary_, of.positions, 1, latent_.interleaved, RotatedPart(heads->q));
}

AttentionInput LatentAttention::Input(const LatentRows& of, const LatentHeads& heads) const {
  const at::Tensor k =
      at::empty({heads.kv.size(0), heads.kv.size(1), heads_, kernel_size_}, of.rows.options());
  const int64_t plain = latent_.plain_head_size;
  k.narrow(-1, 0, plain).copy_(heads.kv.narrow(-1, 0, plain));
  RotatedPart(k).copy_(RotatedKey(of));
  k.narrow(-1, head_size_, kernel_size_ - head_size_).zero_();
  const at::Tensor v = Padded(heads.kv.narrow(-1, plain, latent_.value_head_size), kernel_size_);
  return {Widened(HasQueryLatent() ? heads.q : Queries(of), kernel_size_), k, v, /*causal=*/true, scale_};
}

AttentionOutput LatentAttention::Attend(const LatentRows& of, const LatentHeads& heads,
                                        const Documents& documents, const UnitContext& context) const {
  const AttentionInput input = Input(of, heads);
  AttentionOutput output = of.samples.defined()
                               ? AttendToSamples(input, PartitionOf(input.q.size(1), context), ChooseKernel)
                           : documents.empty() ? AttentionForward(input, ChooseKernel(input))
                                               : AttentionForward(input, documents);
  output.out = Narrowed(output.out, latent_.value_head_size);
  return output;
}

AttentionInput LatentAttention::AttendBackward(at::Tensor grad, const LatentRows& of,
                                               const LatentHeads& heads, const AttentionOutput& attended,
                                               const Documents& documents, const UnitContext& context) const {
  grad = Widened(grad, kernel_size_);
  AttentionOutput output = attended;
  output.out = Widened(attended.out, kernel_size_);
  const AttentionInput input = Input(of, heads);
  if (of.samples.defined())
    return AttendToSamplesBackward(grad, input, output, PartitionOf(input.q.size(1), context));
  return AttentionBackward(grad, input, output, documents);
}

LatentProduct LatentAttention::LatentBackward(at::Tensor grad_out, const at::Tensor& matrix,
                                              const at::Tensor& latent, const at::Tensor& rstd,
                                              const at::Tensor& norm, bool accumulate,
                                              const at::Tensor& norm_into) const {
  at::Tensor normed = LinearBackward(grad_out, Matrices{matrix});  // Its gradient, until RmsNormBackward.
  latent.copy_(RmsNormBackward(normed, latent.contiguous(), rstd, norm, /*residual=*/{}, accumulate,
                               norm_into,
                               /*y_into=*/normed));
  return {std::move(grad_out), std::move(normed)};
}

LatentProduct LatentAttention::KeysBackward(const at::Tensor& grad_k, const at::Tensor& grad_v,
                                            const LatentRows& of, const LatentHeads& heads,
                                            const LatentParams& params, bool accumulate,
                                            const at::Tensor& norm_into) const {
  const int64_t plain = latent_.plain_head_size, value = latent_.value_head_size;
  heads.kv.narrow(-1, 0, plain).copy_(grad_k.narrow(-1, 0, plain));
  heads.kv.narrow(-1, plain, value).copy_(grad_v.narrow(-1, 0, value));
  const at::Tensor rotated = RotatedPart(grad_k).sum({2}, /*keepdim=*/true, at::kFloat);
  // Tokens of whole samples are in order.
  const at::Tensor positions = of.samples.defined() ? at::Tensor() : of.positions;
  RotatePart(rotary_, positions, -1, latent_.interleaved, rotated);
  RotatedKey(of).copy_(rotated);
  return LatentBackward(FlatTokens(heads.kv), params.wkv_b, KeyLatents(of), heads.kv_rstd, params.kv_norm,
                        accumulate, norm_into);
}

LatentProduct LatentAttention::QueriesBackward(const at::Tensor& grad_q, const LatentRows& of,
                                               const LatentHeads& heads, const LatentParams& params,
                                               bool accumulate, const at::Tensor& norm_into) const {
  const at::Tensor grad = Narrowed(grad_q, head_size_);
  RotatePart(rotary_, of.positions, -1, latent_.interleaved, RotatedPart(grad));
  if (!HasQueryLatent()) {
    Queries(of).copy_(grad);
    return {};
  }
  return LatentBackward(FlatTokens(grad), params.wq_b, of.rows.narrow(1, 0, latent_.query_rank), heads.q_rstd,
                        params.q_norm, accumulate, norm_into);
}

}  // namespace fsdpd
