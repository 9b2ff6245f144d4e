// Which experts each token of a layer goes to, and how much each of them counts: forward, and backward with
// what the router itself adds to the loss (v1::Llama::Experts says what that is).
//
// Everything is fp32, products included, whatever type tokens and router come in. A choice is a token and one
// of its experts; choices are numbered token by token. What experts work on are rows, one for each choice,
// expert by expert and within one in the tokens' order: no token is dropped, and how many rows an expert has
// is different each time. The host knows it, so on a GPU it waits here.
//
// Ranks that share matrices (Group::kTensor) all route all of the micro-batch's tokens, with the same bits;
// what the router adds to the loss the first of them does. Of samples that ranks share (Group::kContext) each
// routes its part, and how often the sample chose each expert is summed: so nothing here depends on how
// samples lie on ranks. Call with gradient mode off.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "fsdp/model/unit/unit_context.h"
#include "fsdp/plan/spec/spec.h"

namespace fsdpd {

struct Routing {
  at::Tensor logits;          // [tokens x experts]
  at::Tensor experts;         // [tokens x per_token] int64, the highest score first.
  at::Tensor order;           // [rows] int64: of which choice each row is.
  at::Tensor loads;           // [samples x experts]: choices of each expert, by a whole sample's tokens.
  std::vector<int64_t> rows;  // Of each expert.
};

struct Router {
  at::Tensor matrix;  // [experts x hidden]
  at::Tensor bias;    // [experts], of selection; undefined: there is none.
};

// x: [tokens x hidden], those of one sample after the other, of `samples`.
Routing Route(const at::Tensor& x, const Router& router, const ExpertsConfig& config, int64_t samples,
              UnitContext* context);

// How much each row counts: [rows x 1].
at::Tensor RowWeights(const Routing& routing, const ExpertsConfig& config);

// For UnitContext::AddRouting, where ranks share matrices of the first of them.
at::Tensor RoutingSums(const Routing& routing, const ExpertsConfig& config);

// The gradient of the router's products, [tokens x experts], from that of RowWeights.
at::Tensor RouterBackward(const Routing& routing, const ExpertsConfig& config, const at::Tensor& grad_weights,
                          const UnitContext& context);

}  // namespace fsdpd
