// Expert-parallel token dispatch: moves tokens to the ranks that hold their experts, and results back. In
// Group::kExpert, rank r holds the r-th of equal parts of a layer's experts and computes their rows
// (native_rows.h) for tokens of all ranks.
//
// With few ranks relative to the experts per token (GathersTokens), dispatch is an all-gather of all tokens
// and their routing; results are summed over ranks, sent in the compute type and added in fp32. Otherwise it
// is an all-to-all of rows, one per choice, with a fixed part for each rank.
//
// The number of rows per expert varies with the data and is known only to devices. The host never waits for
// it, since all shapes are fixed: each rank (or each pair of ranks, for all-to-all) has a capacity that the
// context states. On overflow the context is notified, and the results are unusable.
//
// On a rank that holds all experts nothing is moved. Call with gradient mode off, on all ranks of the group
// in the same order.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "fsdp/model/native/native_router.h"
#include "fsdp/model/unit/unit_context.h"

namespace fsdpd {

struct TokenDispatch {
  at::Tensor weights;  // [rows here x 1] fp32: the routing weight of each row.
  // With several ranks: rows of this rank's experts, placed from the choices of all ranks (concatenated in
  // rank order), or from the rows that they sent.
  RowPlaces here;
  // All-to-all only: the rows to send, grouped by destination rank.
  RowPlaces sent;
};

// The input of the experts, from this rank's `tokens` (or their gradient): with the all-gather, the tokens of
// all ranks. `work` overlaps with it.
at::Tensor ForExperts(const at::Tensor& tokens, int64_t per_token, UnitContext* context,
                      const std::function<void()>& work);

// `weights`: from ChoiceWeights.
TokenDispatch MakeTokenDispatch(const Routing& routing, const at::Tensor& weights, UnitContext* context);

// For each row here, its index in the choices of ForExperts' tokens (token * per_token + k); undefined if
// rows are copied before they are sent (all-to-all).
at::Tensor LocalOrder(const Routing& routing, const TokenDispatch& dispatch);
// The ends of the rows of this rank's experts.
const at::Tensor& LocalEnds(const Routing& routing, const TokenDispatch& dispatch);

// The output of ForExperts expanded to rows: [rows here x width].
at::Tensor ToRows(const at::Tensor& tokens, const Routing& routing, const TokenDispatch& dispatch,
                  UnitContext* context);

// `values`, [rows here x 1] fp32, returned to this rank's choices: [choices x 1].
at::Tensor AtChoices(const at::Tensor& values, const Routing& routing, const TokenDispatch& dispatch,
                     UnitContext* context);

// Combines rows into this rank's tokens: [tokens x width] in the rows' type. Rows are the sums of `parts`;
// the rows of a token are added in fp32, together with what `add` adds (empty: nothing) and `addend`
// (undefined: nothing).
at::Tensor AtTokens(std::vector<at::Tensor> parts, const Routing& routing, const TokenDispatch& dispatch,
                    UnitContext* context, const std::function<void(at::Tensor* sum)>& add,
                    const at::Tensor& addend);

}  // namespace fsdpd
