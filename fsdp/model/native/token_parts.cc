#include "fsdp/model/native/token_parts.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include "base/check.h"
#include "fsdp/model/native/native_ops.h"

namespace fsdpd {

TokenParts::TokenParts(UnitContext* context, Group group)
    : context_(context), group_(group), ranks_(context->SizeOf(group)), rank_(context->IndexIn(group)) {}

at::Tensor TokenParts::EmptyParts(const at::Tensor& own) const {
  return at::empty({ranks_ * own.size(0), own.size(1)}, own.options());
}

at::Tensor TokenParts::PartsWithOwn(const at::Tensor& own) const {
  if (ranks_ == 1) return own;
  at::Tensor all = EmptyParts(own);
  Own(all).copy_(own);
  return all;
}

at::Tensor TokenParts::Own(const at::Tensor& all) const {
  const int64_t rows = all.size(0) / ranks_;
  return all.narrow(0, rank_ * rows, rows);
}

void TokenParts::MakeOwn(const at::Tensor& all, const MakeRows& make) const {
  const int64_t rows = all.size(0) / ranks_;
  make(rank_ * rows, rows);
}

void TokenParts::MakeOthers(const at::Tensor& all, const MakeRows& make) const {
  const int64_t rows = all.size(0) / ranks_, end = (rank_ + 1) * rows;
  if (rank_ > 0) make(0, rank_ * rows);
  if (end < all.size(0)) make(end, all.size(0) - end);
}

void TokenParts::Gather(const at::Tensor& all, const MakeRows& make) const {
  GatherWhile(all, [&] { MakeOwn(all, make); });
  MakeOthers(all, make);
}

void TokenParts::GatherWhile(const at::Tensor& all, const std::function<void()>& work) const {
  if (ranks_ == 1) return work();
  context_->Start([&] { context_->AllGather(group_, all.unflatten(0, {ranks_, -1})); });
  work();
  context_->Await();
}

at::Tensor TokenParts::Gather(const at::Tensor& own) const {
  at::Tensor all = PartsWithOwn(own);
  GatherWhile(all, [] {});
  return all;
}

at::Tensor TokenParts::Sum(const at::Tensor& parts, const MakeRows& make, const at::Tensor& addend) const {
  if (ranks_ == 1) {
    FSDPD_CHECK(!addend.defined());
    make(0, parts.size(0));
    return parts;
  }
  FSDPD_CHECK(parts.size(0) % ranks_ == 0);
  const at::Tensor sent = parts.unflatten(0, {ranks_, -1}), received = at::empty_like(sent);
  MakeOthers(parts, make);
  context_->Start([&] { context_->SendParts(group_, sent, received); });
  MakeOwn(parts, make);
  context_->Await();
  return SumOfParts(sent, received, rank_, addend);
}

at::Tensor TokenParts::Sum(const at::Tensor& parts, const at::Tensor& addend) const {
  return Sum(
      parts, [](int64_t, int64_t) {}, addend);
}

}  // namespace fsdpd
