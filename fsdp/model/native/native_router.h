// Top-k router of mixture-of-experts layers: which experts each token is routed to, and with which weight.
// Forward, and backward including the router's own losses (defined in v1::Llama::Experts).
//
// All arithmetic is fp32, including products, whatever the type of tokens and router. On CUDA, bf16 products
// run on tensor cores, where fp32 represents each product exactly; an fp32 gradient is split into two bf16
// numbers for that. A choice is one (token, expert) pair, and each is a row of its expert (native_rows.h).
// Tokens are never dropped. The number of rows per expert varies with the data; the host never needs it, so a
// GPU is never synchronized.
//
// Tensor-parallel ranks (Group::kTensor) all route all tokens of the micro-batch, with the same bits; the
// first rank adds the router losses. Context-parallel ranks (Group::kContext) each route their part of a
// sample, and the expert counts of the sample are summed over ranks. Results therefore do not depend on how
// samples are distributed over ranks. Call with gradient mode off.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "fsdp/model/native/native_rows.h"
#include "fsdp/model/unit/unit_context.h"
#include "fsdp/plan/spec/spec.h"

namespace fsdpd {

struct Routing {
  at::Tensor logits;   // [tokens x experts]
  at::Tensor experts;  // [tokens x per_token] int64, by descending score.
  RowPlaces rows;      // Only if this rank has all experts; padded on CUDA.
  at::Tensor counts;   // [experts] fp32: this rank's choices per expert.
  at::Tensor loads;    // [samples x experts] fp32: choices per expert over all tokens of a sample.
  // [samples] fp32: the fraction of a whole sample's targets that count in the loss. It weights the router
  // losses of the sample, like its cross-entropy.
  at::Tensor counted;
};

struct Router {
  at::Tensor matrix;  // [experts x hidden]
  at::Tensor bias;    // [experts], added for selection only; undefined: no bias.
};

// x: [tokens x hidden], sample by sample. targets: [samples x tokens per sample], from UnitInput.
Routing Route(const at::Tensor& x, const Router& router, const ExpertsConfig& config,
              const at::Tensor& targets, UnitContext* context);

// Routing weight of each choice: [choices x 1] fp32.
at::Tensor ChoiceWeights(const Routing& routing, const ExpertsConfig& config);

// Argument of UnitContext::AddRouting; with tensor parallelism, only the first rank calls that.
at::Tensor RoutingSums(const Routing& routing, const ExpertsConfig& config);

// The gradient of the logits, [tokens x experts], from the gradient of ChoiceWeights, which is overwritten.
// Exactly 0 with normalized weights, per_token = 1 and no router losses, since the weight is then a constant.
at::Tensor RouterBackward(const Routing& routing, const ExpertsConfig& config, at::Tensor grad_weights,
                          const UnitContext& context);

// Adds the tokens' gradient that follows from `grad_logits` to `sum`, [tokens x hidden] fp32.
void AddRouterInputGrad(const at::Tensor& grad_logits, const at::Tensor& matrix, at::Tensor* sum);
// The gradient of the router matrix in fp32.
at::Tensor RouterMatrixGrad(const at::Tensor& grad_logits, const at::Tensor& x);

}  // namespace fsdpd
