// Who calls the public API, as the gate found out.
#pragma once

#include <string>

#include "base/person.h"

namespace fsdpd {

struct Caller {
  std::string name;  // Empty where nobody is asked.
  PersonRole role = PersonRole::kAdmin;
  std::string project = {};  // Its jobs' where they say none; empty for none.
};

}  // namespace fsdpd
