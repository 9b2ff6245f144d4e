// Authenticated caller of the public API.
#pragma once

#include <string>

#include "base/api/principal.h"

namespace fsdpd {

struct Caller {
  std::string name;  // Empty if authentication is off.
  PrincipalRole role = PrincipalRole::kAdmin;
  std::string project = {};  // Default project of its jobs; empty if none.
};

}  // namespace fsdpd
