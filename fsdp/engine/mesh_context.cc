#include "fsdp/engine/mesh_context.h"

#include <absl/strings/str_cat.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "fsdp/torch/scalar_type.h"

namespace fsdpd {
// After an error the other ranks may be elsewhere: nothing more is sent.
void MeshContext::AllReduce(Group group, at::Tensor values) {
  status_.Update(Check(Exchange::kSum, group, {values}));
  if (!status_.ok() || SizeOf(group) == 1) return;
  status_ = Between(group)->AllReduce(values.mutable_data_ptr<float>(), values.numel());
}

void MeshContext::AllGather(Group group, at::Tensor parts) {
  status_.Update(Check(Exchange::kGather, group, {parts}));
  if (!status_.ok() || SizeOf(group) == 1) return;
  FSDPD_CHECK(parts.size(0) == SizeOf(group));
  status_ = Between(group)->AllGather(parts.mutable_data_ptr(), parts.numel() / SizeOf(group),
                                      DTypeOf(parts.scalar_type()));
}

void MeshContext::ReduceScatter(Group group, at::Tensor parts, at::Tensor sum) {
  status_.Update(Check(Exchange::kSumPart, group, {parts, sum}));
  if (!status_.ok()) return;
  FSDPD_CHECK(parts.size(0) == SizeOf(group) && parts.numel() == sum.numel() * SizeOf(group));
  if (SizeOf(group) == 1) {
    sum.copy_(parts.view_as(sum));
    return;
  }
  status_ = Between(group)->ReduceScatter(parts.mutable_data_ptr(), /*scratch=*/nullptr,
                                          sum.mutable_data_ptr<float>(), sum.numel(), DType::kFp32);
}

absl::Status MeshContext::Check(Exchange what, Group group, const std::vector<at::Tensor>& tensors) const {
  const auto refuse = [&](const std::string& why) {
    return absl::FailedPreconditionError(
        absl::StrCat("unit ", unit_->name, " ", VerbOf(what), " over ", NameOf(group), ", ", why));
  };
  const auto declared =
      std::find_if(unit_->exchanges.begin(), unit_->exchanges.end(),
                   [&](const UnitExchange& e) { return e.group == group && e.what == what; });
  if (declared == unit_->exchanges.end()) return refuse("which its facts do not say");
  for (const at::Tensor& tensor : tensors) {
    if (tensor.scalar_type() != ScalarTypeOf(declared->type) || !tensor.is_contiguous())
      return refuse(absl::StrCat("but not contiguous ", NameOf(declared->type)));
  }
  return absl::OkStatus();
}

absl::Status MeshContext::TakeStatus() { return std::exchange(status_, absl::OkStatus()); }

}  // namespace fsdpd
