// Who calls the public API, as the authorizer found out.
#pragma once

#include <string>

#include "base/principal.h"

namespace fsdpd {

struct Caller {
  std::string name;  // Empty where nobody is asked.
  PrincipalRole role = PrincipalRole::kAdmin;
  std::string project = {};  // Its jobs' where they say none; empty for none.
};

}  // namespace fsdpd
