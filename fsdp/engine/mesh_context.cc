#include "fsdp/engine/mesh_context.h"

#include <absl/strings/str_cat.h>

#include <algorithm>
#include <utility>

namespace fsdpd {

void MeshContext::AllReduce(Group group, at::Tensor values) {
  // After an error the other ranks may be elsewhere: nothing more is sent.
  if (status_.ok()) status_ = TryAllReduce(group, values);
}

absl::Status MeshContext::TryAllReduce(Group group, const at::Tensor& values) const {
  const auto refuse = [&](const char* why) {
    return absl::FailedPreconditionError(
        absl::StrCat("unit ", unit_->name, " sums over ", NameOf(group), ", ", why));
  };
  const bool declared = std::any_of(unit_->exchanges.begin(), unit_->exchanges.end(),
                                    [group](const UnitExchange& e) { return e.group == group; });
  if (!declared) return refuse("which its facts do not say");
  if (values.scalar_type() != at::kFloat || !values.is_contiguous()) return refuse("but not contiguous fp32");
  if (SizeOf(group) == 1) return absl::OkStatus();
  return mesh_->Find(group, Role::kUnit)->AllReduce(values.mutable_data_ptr<float>(), values.numel());
}

absl::Status MeshContext::TakeStatus() { return std::exchange(status_, absl::OkStatus()); }

}  // namespace fsdpd
