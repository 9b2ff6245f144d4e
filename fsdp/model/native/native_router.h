// Which experts each token of a layer goes to, and how much each of them counts: forward, and backward with
// what the router itself adds to the loss (v1::Llama::Experts says what that is).
//
// Everything is fp32, products included, whatever type tokens and router come in; on CUDA products of bf16
// run on tensor cores, where fp32 has each exactly, and a gradient of fp32 as two numbers of bf16. A choice
// is a token and one of its experts, and each is a row of its expert (native_rows.h): no token is dropped,
// and how many rows an expert has is different each time. The host need not know it, so on a GPU nobody waits
// here.
//
// Ranks that share matrices (Group::kTensor) all route all of the micro-batch's tokens, with the same bits;
// what the router adds to the loss the first of them does. Of samples that ranks share (Group::kContext) each
// routes its part, and how often the sample chose each expert is summed: so nothing here depends on how
// samples lie on ranks. Call with gradient mode off.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "fsdp/model/native/native_rows.h"
#include "fsdp/model/unit/unit_context.h"
#include "fsdp/plan/spec/spec.h"

namespace fsdpd {

struct Routing {
  at::Tensor logits;   // [tokens x experts]
  at::Tensor experts;  // [tokens x per_token] int64, the highest score first.
  RowPlaces rows;      // Where this rank has all experts; filled up on CUDA.
  at::Tensor counts;   // [experts] fp32: the rank's own choices of each.
  at::Tensor loads;    // [samples x experts] fp32: choices of each expert, by a whole sample's tokens.
  // [samples] fp32: of a whole sample's targets, the share that counts in the loss. It weighs the router's
  // losses of the sample, as it weighs the sample's cross entropy.
  at::Tensor counted;
};

struct Router {
  at::Tensor matrix;  // [experts x hidden]
  at::Tensor bias;    // [experts], of selection; undefined: there is none.
};

// x: [tokens x hidden], those of one sample after the other. targets: [samples x tokens of one], UnitInput's.
Routing Route(const at::Tensor& x, const Router& router, const ExpertsConfig& config,
              const at::Tensor& targets, UnitContext* context);

// How much each choice counts: [choices x 1] fp32.
at::Tensor ChoiceWeights(const Routing& routing, const ExpertsConfig& config);

// For UnitContext::AddRouting, where ranks share matrices of the first of them.
at::Tensor RoutingSums(const Routing& routing, const ExpertsConfig& config);

// The gradient of the router's products, [tokens x experts], from that of ChoiceWeights, which it overwrites.
// Exactly 0 with normalized weights, per_token = 1 and no router losses: the weight is then a constant.
at::Tensor RouterBackward(const Routing& routing, const ExpertsConfig& config, at::Tensor grad_weights,
                          const UnitContext& context);

// What comes of that, `grad_logits`: adds the tokens' gradient to `sum`, [tokens x hidden] fp32,
void AddRouterInputGrad(const at::Tensor& grad_logits, const at::Tensor& matrix, at::Tensor* sum);
// and the matrix' gradient in fp32.
at::Tensor RouterMatrixGrad(const at::Tensor& grad_logits, const at::Tensor& x);

}  // namespace fsdpd
