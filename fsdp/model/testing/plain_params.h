// Binding of a unit to plain tensors on a single rank, for tests.
#pragma once

#include <vector>

#include "fsdp/model/unit/unit.h"

namespace fsdpd {

inline void BindSingleRank(Unit* unit, const std::vector<at::Tensor>& params) {
  static SingleRankContext alone;
  unit->Bind({params.begin(), params.end()}, &alone);
}

}  // namespace fsdpd
