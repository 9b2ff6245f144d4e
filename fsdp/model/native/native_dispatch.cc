#include "fsdp/model/native/native_dispatch.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include "base/check.h"
#include "fsdp/model/native/native_ops.h"
#include "fsdp/model/native/token_parts.h"
#include "fsdp/plan/model/expert_capacity.h"
#include "fsdp/plan/model/model_facts.h"

namespace fsdpd {
namespace {

int64_t PerToken(const Routing& routing) { return routing.experts.size(1); }

bool DispatchesRows(const TokenDispatch& dispatch) { return dispatch.sent.order.defined(); }
bool DispatchesTokens(const TokenDispatch& dispatch) {
  return dispatch.here.order.defined() && !DispatchesRows(dispatch);
}

int64_t StepOf(const at::Tensor& like) { return like.is_cuda() ? kExpertRowStep : 1; }

// Expert indices are sent as fp32, packed with the routing weights.
TokenDispatch DispatchOfTokens(const Routing& routing, const at::Tensor& weights, UnitContext* context) {
  const int64_t ranks = context->SizeOf(Group::kExpert), rank = context->IndexIn(Group::kExpert),
                choices = routing.experts.numel(), experts = routing.counts.size(0) / ranks;
  const at::Tensor told = at::zeros({ranks, 2, choices}, weights.options());
  told[rank][0].copy_(routing.experts.flatten());
  told[rank][1].copy_(weights.flatten());
  context->AllGather(Group::kExpert, told);
  const int64_t capacity =
      RowsOfCapacity(context->ExpertCapacity(), choices, PerToken(routing), ranks, experts);
  TokenDispatch dispatch;
  dispatch.here = PlaceRows(told.select(1, 0).to(at::kLong).contiguous(),
                            {rank * experts, experts, StepOf(weights), capacity, context->ExpertOverflow()});
  dispatch.weights = GatherRows(told.select(1, 1).contiguous().view({-1, 1}), dispatch.here.order);
  return dispatch;
}

// All-to-all: `parts` is [ranks x any], one part per destination; returns the parts for this rank.
at::Tensor Exchanged(const at::Tensor& parts, UnitContext* context) {
  at::Tensor received = at::empty_like(parts);
  const int64_t ranks = context->SizeOf(Group::kExpert);
  context->AllToAll(Group::kExpert, parts.unflatten(0, {ranks, -1}), received.unflatten(0, {ranks, -1}));
  return received;
}

// Empty rows are sent as zero, so expert indices are sent plus one.
TokenDispatch DispatchOfRows(const Routing& routing, const at::Tensor& weights, UnitContext* context) {
  const int64_t ranks = context->SizeOf(Group::kExpert), rank = context->IndexIn(Group::kExpert),
                choices = routing.experts.numel(), experts = routing.counts.size(0) / ranks;
  const int64_t capacity = RowsOfPart(context->ExpertCapacity(), choices, PerToken(routing), ranks, experts);
  TokenDispatch dispatch;
  dispatch.sent =
      PlaceInParts(routing.experts.floor_divide(experts), ranks, capacity, context->ExpertOverflow());
  const at::Tensor numbers = routing.experts.flatten().unsqueeze(-1).to(at::kFloat).add_(1);
  const at::Tensor told = Exchanged(GatherRows(at::cat({numbers, weights}, 1), dispatch.sent.order), context);
  dispatch.here = PlaceRows(told.select(1, 0).to(at::kLong).sub_(1).contiguous(),
                            {rank * experts, experts, StepOf(weights), told.size(0), /*overflow=*/{}});
  dispatch.weights = GatherRows(told.select(1, 1).contiguous().view({-1, 1}), dispatch.here.order);
  return dispatch;
}

// Returns rows of experts (or per-row values) to the ranks they came from.
at::Tensor Back(const at::Tensor& rows, const TokenDispatch& dispatch, UnitContext* context) {
  return Exchanged(GatherRows(rows, dispatch.here.of_choice), context);
}

// Computes the other ranks' tokens first, since they are sent, and this rank's during the exchange.
at::Tensor SumOverRanks(const std::vector<at::Tensor>& parts, const Routing& routing,
                        const TokenDispatch& dispatch, UnitContext* context,
                        const std::function<void(at::Tensor* sum)>& add, const at::Tensor& addend) {
  const TokenParts among(context, Group::kExpert);
  const int64_t per_token = PerToken(routing), tokens = routing.experts.size(0);
  const at::Tensor partial = at::empty({among.ranks() * tokens, parts[0].size(1)}, parts[0].options());
  const auto make = [&](int64_t begin, int64_t rows) {
    const at::Tensor into = partial.narrow(0, begin, rows);
    const at::Tensor of_choice = dispatch.here.of_choice.narrow(0, begin * per_token, rows * per_token);
    if (begin != among.rank() * tokens || !add) return SumOfRowsInto(parts, of_choice, per_token, into);
    at::Tensor sum = SumOfRows(parts, of_choice, per_token);
    add(&sum);
    into.copy_(sum);
  };
  return among.Sum(partial, make, addend);
}

}  // namespace

at::Tensor ForExperts(const at::Tensor& tokens, int64_t per_token, UnitContext* context,
                      const std::function<void()>& work) {
  const TokenParts among(context, Group::kExpert);
  if (!GathersTokens(among.ranks(), per_token)) {
    work();
    return tokens;
  }
  at::Tensor all = among.PartsWithOwn(tokens);
  among.GatherWhile(all, work);
  return all;
}

TokenDispatch MakeTokenDispatch(const Routing& routing, const at::Tensor& weights, UnitContext* context) {
  const int64_t ranks = context->SizeOf(Group::kExpert);
  FSDPD_CHECK(routing.counts.size(0) % ranks == 0);
  if (ranks == 1) return {GatherRows(weights, routing.rows.order), {}, {}};
  return GathersTokens(ranks, PerToken(routing)) ? DispatchOfTokens(routing, weights, context)
                                                 : DispatchOfRows(routing, weights, context);
}

at::Tensor LocalOrder(const Routing& routing, const TokenDispatch& dispatch) {
  if (DispatchesRows(dispatch)) return {};
  return DispatchesTokens(dispatch) ? dispatch.here.order : routing.rows.order;
}

const at::Tensor& LocalEnds(const Routing& routing, const TokenDispatch& dispatch) {
  return dispatch.here.ends.defined() ? dispatch.here.ends : routing.rows.ends;
}

at::Tensor ToRows(const at::Tensor& tokens, const Routing& routing, const TokenDispatch& dispatch,
                  UnitContext* context) {
  const at::Tensor& ends = LocalEnds(routing, dispatch);
  const int64_t per_token = PerToken(routing);
  if (!DispatchesRows(dispatch)) return GatherRows(tokens, LocalOrder(routing, dispatch), per_token, ends);
  const at::Tensor received = Exchanged(GatherRows(tokens, dispatch.sent.order, per_token), context);
  return GatherRows(received, dispatch.here.order, /*divisor=*/1, ends);
}

// With the all-gather, one rank has the value of a choice and the others have zero.
at::Tensor AtChoices(const at::Tensor& values, const Routing& routing, const TokenDispatch& dispatch,
                     UnitContext* context) {
  if (DispatchesRows(dispatch)) return GatherRows(Back(values, dispatch, context), dispatch.sent.of_choice);
  if (!DispatchesTokens(dispatch)) return GatherRows(values, routing.rows.of_choice);
  const at::Tensor sent =
      GatherRows(values, dispatch.here.of_choice).view({context->SizeOf(Group::kExpert), -1});
  const at::Tensor received = at::empty_like(sent);
  context->SendParts(Group::kExpert, sent, received);
  return SumOfParts(sent, received, context->IndexIn(Group::kExpert), /*addend=*/{}).unsqueeze(-1);
}

at::Tensor AtTokens(std::vector<at::Tensor> parts, const Routing& routing, const TokenDispatch& dispatch,
                    UnitContext* context, const std::function<void(at::Tensor* sum)>& add,
                    const at::Tensor& addend) {
  if (DispatchesTokens(dispatch)) return SumOverRanks(parts, routing, dispatch, context, add, addend);
  if (DispatchesRows(dispatch)) {
    for (size_t part = 1; part < parts.size(); ++part) parts[0].add_(parts[part]);
    parts.resize(1);
    parts = {Back(parts[0], dispatch, context)};
  }
  const at::Tensor& of_choice = DispatchesRows(dispatch) ? dispatch.sent.of_choice : routing.rows.of_choice;
  if (!add && addend.defined()) return SumOfRows(parts, of_choice, PerToken(routing), addend);
  at::Tensor sum = SumOfRows(parts, of_choice, PerToken(routing));
  if (add) add(&sum);
  if (addend.defined()) sum.add_(addend);
  return sum.to(parts[0].scalar_type());
}

}  // namespace fsdpd
