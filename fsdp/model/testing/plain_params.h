// A unit by itself: parameters that are nothing but tensors, on a rank that shares its model with nobody.
#pragma once

#include <vector>

#include "fsdp/model/unit/unit.h"

namespace fsdpd {

inline void BindAlone(Unit* unit, const std::vector<at::Tensor>& params) {
  static LoneContext alone;
  unit->Bind({params.begin(), params.end()}, &alone);
}

}  // namespace fsdpd
