#include "fsdp/model/user_model.h"

#include <absl/strings/str_cat.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "fsdp/torch/torch_status.h"

namespace fsdpd {

absl::StatusOr<std::vector<std::unique_ptr<Unit>>> MakeUserUnits(const UserModel& model,
                                                                 const ModelFacts& facts, at::Device device) {
  std::vector<std::unique_ptr<Unit>> units;
  FSDPD_RETURN_IF_ERROR(CatchTorch([&] {
    units = model.MakeUnits(facts, device);
    return absl::OkStatus();
  }));
  const auto null = std::find(units.begin(), units.end(), nullptr);
  if (units.size() != facts.units.size() || null != units.end()) {
    return absl::InvalidArgumentError(absl::StrCat("MakeUnits: wrong number of units (got ",
                                                   null - units.begin(), ", want ", facts.units.size(), ")"));
  }
  return units;
}

}  // namespace fsdpd
