// The way of tokens to the ranks that have their experts, and back. Of the ranks of Group::kExpert the r-th
// has the r-th of as many equal parts of a layer's experts, and works on the rows (native_rows.h) of all of
// them.
//
// Where the ranks are few for a token's experts (TokensTravel), each rank gets all tokens and which experts
// they go to, and what they came to is summed, in the compute type on the way and in fp32 at its end.
// Elsewhere rows travel, one for each expert of a token, in a part for each rank.
//
// How many rows an expert gets is different each time and known to devices alone: nobody waits for it, as
// shapes are always the same. A rank has room for so many rows, or of each other rank's, as the context says;
// where that is too little it says so, and results are of no use.
//
// Of a rank that has all experts itself nothing is moved. Call with gradient mode off, on all ranks of the
// group in the same order.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "fsdp/model/native/native_router.h"
#include "fsdp/model/unit/unit_context.h"

namespace fsdpd {

struct TokenDispatch {
  at::Tensor weights;  // [rows here x 1] fp32: how much each counts.
  // Where there are others: of all ranks' choices, one rank's after the other, or of what they sent.
  RowPlaces here;
  // Where rows travel: those for each rank, one rank's after the other.
  RowPlaces sent;
};

// What experts read of `tokens`, this rank's, or of their gradient: theirs and the others' where tokens
// travel, beside `work`.
at::Tensor ForExperts(const at::Tensor& tokens, int64_t per_token, UnitContext* context,
                      const std::function<void()>& work);

// `weights`: ChoiceWeights.
TokenDispatch MakeTokenDispatch(const Routing& routing, const at::Tensor& weights, UnitContext* context);

// Of which of ForExperts' tokens, times a token's experts, each row here is a copy; undefined where rows are
// copied before they travel.
at::Tensor OrderHere(const Routing& routing, const TokenDispatch& dispatch);
// Where the rows of this rank's experts end.
const at::Tensor& EndsHere(const Routing& routing, const TokenDispatch& dispatch);

// What ForExperts gave as rows: [rows here x width].
at::Tensor ToRows(const at::Tensor& tokens, const Routing& routing, const TokenDispatch& dispatch,
                  UnitContext* context);

// What this rank's choices have of `values`, [rows here x 1] fp32: [choices x 1].
at::Tensor AtChoices(const at::Tensor& values, const Routing& routing, const TokenDispatch& dispatch,
                     UnitContext* context);

// What this rank's tokens have of rows, which are the sums of their `parts`, added up in fp32 with what `add`
// adds (empty: nothing) and with `addend` (undefined: nothing): [tokens x width] in the rows' type.
at::Tensor AtTokens(std::vector<at::Tensor> parts, const Routing& routing, const TokenDispatch& dispatch,
                    UnitContext* context, const std::function<void(at::Tensor* sum)>& add,
                    const at::Tensor& addend);

}  // namespace fsdpd
