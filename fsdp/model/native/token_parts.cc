#include "fsdp/model/native/token_parts.h"

#include <ATen/ops/empty.h>

#include "base/check.h"

namespace fsdpd {

TokenParts::TokenParts(UnitContext* context)
    : context_(context), ranks_(context->SizeOf(Group::kTensor)), rank_(context->IndexIn(Group::kTensor)) {}

at::Tensor TokenParts::Gather(const at::Tensor& own) const {
  if (ranks_ == 1) return own;
  const at::Tensor all = at::empty({ranks_, own.size(0), own.size(1)}, own.options());
  all.select(0, rank_).copy_(own);
  context_->AllGather(Group::kTensor, all);
  return all.flatten(0, 1);
}

at::Tensor TokenParts::Sum(const at::Tensor& parts) const {
  if (ranks_ == 1) return parts;
  FSDPD_CHECK(parts.size(0) % ranks_ == 0);
  at::Tensor sum = at::empty({parts.size(0) / ranks_, parts.size(1)}, parts.options().dtype(at::kFloat));
  context_->ReduceScatter(Group::kTensor, parts.unflatten(0, {ranks_, -1}), sum);
  return sum;
}

}  // namespace fsdpd
