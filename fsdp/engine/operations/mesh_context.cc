#include "fsdp/engine/operations/mesh_context.h"

#include <absl/strings/str_cat.h>

#include <string>
#include <utility>

#include "base/check.h"
#include "fsdp/torch/scalar_type.h"

namespace fsdpd {
// After an error nothing more is sent, since the other ranks may be in a different collective.
void MeshContext::AllReduce(Group group, at::Tensor values) {
  status_.Update(Check(Exchange::kAllReduce, group, values));
  if (!status_.ok() || SizeOf(group) == 1) return;
  status_ = Between(group)->AllReduce(values.mutable_data_ptr<float>(), values.numel());
}

void MeshContext::AllGather(Group group, at::Tensor parts) {
  status_.Update(Check(Exchange::kAllGather, group, parts));
  if (!status_.ok() || SizeOf(group) == 1) return;
  FSDPD_CHECK(parts.size(0) == SizeOf(group));
  status_ = Between(group)->AllGather(parts.mutable_data_ptr(), parts.numel() / SizeOf(group),
                                      DTypeOf(parts.scalar_type()));
}

void MeshContext::SendParts(Group group, at::Tensor sent, at::Tensor received) {
  Send(Exchange::kReduceScatter, group, sent, received);
}

void MeshContext::AllToAll(Group group, at::Tensor sent, at::Tensor received) {
  Send(Exchange::kAllToAll, group, sent, received);
  received.select(0, IndexIn(group)).copy_(sent.select(0, IndexIn(group)));
}

void MeshContext::Send(Exchange what, Group group, const at::Tensor& sent, const at::Tensor& received) {
  status_.Update(Check(what, group, sent));
  if (!status_.ok() || SizeOf(group) == 1) return;
  FSDPD_CHECK(sent.size(0) == SizeOf(group) && received.is_contiguous());
  FSDPD_CHECK(received.sizes() == sent.sizes() && received.scalar_type() == sent.scalar_type());
  status_ = Between(group)->AllToAll(sent.const_data_ptr(), received.mutable_data_ptr(),
                                     sent.numel() / SizeOf(group), DTypeOf(sent.scalar_type()));
}

void MeshContext::Start(std::function<void()> exchanges) {
  if (!status_.ok()) return;
  status_.Update(side_stream_->Start([this, exchanges = std::move(exchanges)] {
    exchanges();
    return status_;
  }));
}

void MeshContext::Await() { status_.Update(side_stream_->Await()); }

absl::Status MeshContext::Check(Exchange what, Group group, const at::Tensor& tensor) const {
  const auto refuse = [&](const std::string& why) {
    return absl::FailedPreconditionError(
        absl::StrCat("unit ", unit_->name, " ", VerbOf(what), " over ", NameOf(group), ", ", why));
  };
  std::string types;  // An exchange may be declared with several types.
  for (const UnitExchange& declared : unit_->exchanges) {
    if (declared.group != group || declared.what != what) continue;
    if (tensor.scalar_type() == ScalarTypeOf(declared.type) && tensor.is_contiguous())
      return absl::OkStatus();
    absl::StrAppend(&types, types.empty() ? "" : " or ", NameOf(declared.type));
  }
  return refuse(types.empty() ? "which its facts do not declare"
                              : absl::StrCat("but the tensor is not contiguous ", types));
}

absl::Status MeshContext::TakeStatus() { return std::exchange(status_, absl::OkStatus()); }

}  // namespace fsdpd
