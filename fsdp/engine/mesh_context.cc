#include "fsdp/engine/mesh_context.h"

#include <ATen/ops/empty_like.h>
#include <absl/strings/str_cat.h>

#include <string>
#include <utility>

#include "base/check.h"
#include "fsdp/torch/scalar_type.h"

namespace fsdpd {
// After an error the other ranks may be elsewhere: nothing more is sent.
void MeshContext::AllReduce(Group group, at::Tensor values) {
  status_.Update(Check(Exchange::kSum, group, values));
  if (!status_.ok() || SizeOf(group) == 1) return;
  status_ = Between(group)->AllReduce(values.mutable_data_ptr<float>(), values.numel());
}

void MeshContext::AllGather(Group group, at::Tensor parts) {
  status_.Update(Check(Exchange::kGather, group, parts));
  if (!status_.ok() || SizeOf(group) == 1) return;
  FSDPD_CHECK(parts.size(0) == SizeOf(group));
  status_ = Between(group)->AllGather(parts.mutable_data_ptr(), parts.numel() / SizeOf(group),
                                      DTypeOf(parts.scalar_type()));
}

void MeshContext::ReduceScatter(Group group, at::Tensor parts, at::Tensor sum) {
  FSDPD_CHECK(sum.scalar_type() == at::kFloat && sum.is_contiguous());
  status_.Update(Check(Exchange::kSumPart, group, parts));
  if (!status_.ok()) return;
  FSDPD_CHECK(parts.size(0) == SizeOf(group) && parts.numel() == sum.numel() * SizeOf(group));
  if (SizeOf(group) == 1) {
    sum.copy_(parts.view_as(sum));
    return;
  }
  const DType wire = DTypeOf(parts.scalar_type());
  const at::Tensor received = wire == DType::kFp32 ? at::Tensor() : at::empty_like(parts);
  status_ = Between(group)->ReduceScatter(parts.mutable_data_ptr(),
                                          received.defined() ? received.mutable_data_ptr() : nullptr,
                                          sum.mutable_data_ptr<float>(), sum.numel(), wire);
}

absl::Status MeshContext::Check(Exchange what, Group group, const at::Tensor& tensor) const {
  const auto refuse = [&](const std::string& why) {
    return absl::FailedPreconditionError(
        absl::StrCat("unit ", unit_->name, " ", VerbOf(what), " over ", NameOf(group), ", ", why));
  };
  std::string types;  // It may do so with several.
  for (const UnitExchange& declared : unit_->exchanges) {
    if (declared.group != group || declared.what != what) continue;
    if (tensor.scalar_type() == ScalarTypeOf(declared.type) && tensor.is_contiguous())
      return absl::OkStatus();
    absl::StrAppend(&types, types.empty() ? "" : " or ", NameOf(declared.type));
  }
  return refuse(types.empty() ? "which its facts do not say" : absl::StrCat("but not contiguous ", types));
}

absl::Status MeshContext::TakeStatus() { return std::exchange(status_, absl::OkStatus()); }

}  // namespace fsdpd
