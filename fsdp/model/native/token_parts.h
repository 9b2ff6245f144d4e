// Sequence parallelism of the ranks that share matrices (Group::kTensor). Within attention and FFN all of
// them work on all tokens of a micro-batch, each with its slice of the matrices; between, on the residual
// stream and in its norms, each has a part of the tokens: in the micro-batch's order, the i-th of as many
// equal parts. So what is kept of the stream, and the work of norms, is parted too, and a gather before and a
// sum after take the place of the sum of everything that unparted tokens would need.
//
// What is gathered and summed has the compute type, sums are made in fp32. The unit's facts say the
// exchanges. They travel beside work that does not need them: of a product over all tokens the rank makes its
// own tokens' rows while the others' come, and the others' first where they are sent.
//
// Of a rank that shares matrices with nobody every part is the whole, and nothing is copied.
//
// Ranks of another group part and join tokens alike (native_dispatch.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

#include "fsdp/model/unit/unit_context.h"

namespace fsdpd {

class TokenParts {
 public:
  // Makes `rows` of all tokens from row `begin` on.
  using MakeRows = std::function<void(int64_t begin, int64_t rows)>;

  explicit TokenParts(UnitContext* context, Group group = Group::kTensor);

  int64_t ranks() const { return ranks_; }
  int64_t rank() const { return rank_; }

  // For all tokens' rows like `own`, which are this rank's. Undefined contents.
  at::Tensor RoomFor(const at::Tensor& own) const;
  // With them in it. Of one rank: `own`.
  at::Tensor RoomWith(const at::Tensor& own) const;
  // This rank's rows of all.
  at::Tensor Own(const at::Tensor& all) const;

  // Gets the others' rows of `all`, whose own are there, and calls `make` for all rows, each when it is
  // there.
  void Gather(const at::Tensor& all, const MakeRows& make) const;
  // The same, beside `work`.
  void GatherWhile(const at::Tensor& all, const std::function<void()>& work) const;
  // All rows, of which `own` are this rank's.
  at::Tensor Gather(const at::Tensor& own) const;

  // This rank's rows of the sum over ranks of `parts`, all tokens' rows, which `make` makes, and of `addend`.
  // REQUIRES: `addend` only where there are several ranks.
  at::Tensor Sum(const at::Tensor& parts, const MakeRows& make, const at::Tensor& addend = {}) const;
  // Of `parts` that are there.
  at::Tensor Sum(const at::Tensor& parts, const at::Tensor& addend = {}) const;

 private:
  void MakeOwn(const at::Tensor& all, const MakeRows& make) const;
  void MakeOthers(const at::Tensor& all, const MakeRows& make) const;

  UnitContext* const context_;
  const Group group_;
  const int64_t ranks_;
  const int64_t rank_;
};

}  // namespace fsdpd
