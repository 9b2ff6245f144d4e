// Sequence parallelism within the tensor-parallel group (Group::kTensor). Inside attention and FFN each rank
// processes all tokens of a micro-batch with its shard of the matrices. In between, on the residual stream
// and in norms, rank i has the i-th of equal parts of the tokens. That divides the saved activations of the
// residual stream and the work of norms; an all-gather before and a reduce-scatter after each half replace
// the all-reduce that replicated tokens would need.
//
// Tensors are sent in the compute type and summed in fp32. The unit's facts list the exchanges. Communication
// overlaps with independent work: a product over all tokens computes this rank's rows while the other rows
// arrive, and computes the other ranks' rows first where they are sent.
//
// With a single rank every part is the whole, and nothing is copied.
//
// Other groups use it for the same split and merge (native_dispatch.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

#include "fsdp/model/unit/unit_context.h"

namespace fsdpd {

class TokenParts {
 public:
  // Computes `rows` rows starting at `begin`, of all tokens.
  using MakeRows = std::function<void(int64_t begin, int64_t rows)>;

  explicit TokenParts(UnitContext* context, Group group = Group::kTensor);

  int64_t ranks() const { return ranks_; }
  int64_t rank() const { return rank_; }

  // An uninitialized tensor for all tokens' rows, given this rank's rows `own`.
  at::Tensor EmptyParts(const at::Tensor& own) const;
  // The same, with `own` copied into place. With one rank: `own` itself.
  at::Tensor PartsWithOwn(const at::Tensor& own) const;
  // View of this rank's rows.
  at::Tensor Own(const at::Tensor& all) const;

  // Gathers the other ranks' rows into `all`, which has this rank's, and calls `make` for all rows as they
  // arrive.
  void Gather(const at::Tensor& all, const MakeRows& make) const;
  // The same, overlapped with `work`.
  void GatherWhile(const at::Tensor& all, const std::function<void()>& work) const;
  // Gathers all rows, given this rank's `own`.
  at::Tensor Gather(const at::Tensor& own) const;

  // Reduce-scatter of `parts` (rows of all tokens, which `make` computes), plus `addend`: returns this rank's
  // rows. REQUIRES: `addend` is defined only with several ranks.
  at::Tensor Sum(const at::Tensor& parts, const MakeRows& make, const at::Tensor& addend = {}) const;
  // The same for `parts` that are already computed.
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
