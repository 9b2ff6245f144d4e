// Sequence parallelism of the ranks that share matrices (Group::kTensor). Within attention and FFN all of
// them work on all tokens of a micro-batch, each with its slice of the matrices; between, on the residual
// stream and in its norms, each has a part of the tokens: in the micro-batch's order, the i-th of as many
// equal parts. So what is kept of the stream, and the work of norms, is parted too, and a gather before and a
// sum after take the place of the sum of everything that unparted tokens would need.
//
// What is gathered and summed has the compute type, sums are made in fp32. The unit's facts say the
// exchanges. Of a rank that shares matrices with nobody every part is the whole, and nothing is copied.
#pragma once

#include <ATen/core/Tensor.h>

#include "fsdp/model/unit/unit_context.h"

namespace fsdpd {

class TokenParts {
 public:
  explicit TokenParts(UnitContext* context);

  int64_t ranks() const { return ranks_; }
  int64_t rank() const { return rank_; }

  // [this rank's tokens x width] to [all tokens x width], in order.
  at::Tensor Gather(const at::Tensor& own) const;

  // From everyone's [all tokens x width], this rank's tokens of the sum, in fp32; `parts` is lost. Where
  // ranks are one, `parts` itself.
  at::Tensor Sum(const at::Tensor& parts) const;

 private:
  UnitContext* const context_;
  const int64_t ranks_;
  const int64_t rank_;
};

}  // namespace fsdpd
