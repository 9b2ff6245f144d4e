#include "fsdp/engine/mesh_context.h"

#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <absl/strings/str_cat.h>

#include <algorithm>
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

void MeshContext::SendParts(Group group, at::Tensor sent, at::Tensor received) {
  status_.Update(Check(Exchange::kSumPart, group, sent));
  if (!status_.ok() || SizeOf(group) == 1) return;
  FSDPD_CHECK(sent.size(0) == SizeOf(group) && received.is_contiguous());
  FSDPD_CHECK(received.sizes() == sent.sizes() && received.scalar_type() == sent.scalar_type());
  status_ = Between(group)->AllToAll(sent.const_data_ptr(), received.mutable_data_ptr(),
                                     sent.numel() / SizeOf(group), DTypeOf(sent.scalar_type()));
}

void MeshContext::Start(std::function<void()> exchanges) {
  if (!status_.ok()) return;
  status_.Update(aside_->Start([this, exchanges = std::move(exchanges)] {
    exchanges();
    return status_;
  }));
}

void MeshContext::Await() { status_.Update(aside_->Await()); }

void MeshContext::AllToAll(Group group, const at::Tensor& in, const std::vector<int64_t>& sent,
                           at::Tensor out, const std::vector<int64_t>& received) {
  FSDPD_CHECK(out.is_contiguous() && out.scalar_type() == in.scalar_type());
  FSDPD_CHECK(static_cast<int64_t>(sent.size()) == SizeOf(group) && received.size() == sent.size());
  status_.Update(Check(Exchange::kSend, group, in));
  if (!status_.ok()) return;
  const int64_t width =
      in.size(0) > 0 ? in.numel() / in.size(0) : out.numel() / std::max<int64_t>(1, out.size(0));
  const auto elements = [width](std::vector<int64_t> rows) {
    for (int64_t& count : rows) count *= width;
    return rows;
  };
  status_ = Between(group)->AllToAllUneven(in.const_data_ptr(), elements(sent).data(), out.mutable_data_ptr(),
                                           elements(received).data(), DTypeOf(in.scalar_type()));
}

at::Tensor MeshContext::OnHost(Group group, const at::Tensor& values) {
  if (!values.is_cuda()) return values;
  const at::Tensor host = at::zeros(values.sizes(), values.options().device(at::kCPU).pinned_memory(true));
  if (!status_.ok()) return host;
  host.copy_(values, /*non_blocking=*/true);
  status_ = Between(group)->Await();
  return status_.ok() ? host : at::zeros_like(host);
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
