// Limit of open files and connections of this process. A shell sets a soft limit of 1024, while the hard
// limit is some hundred thousands.
#pragma once

#include <cstdint>

namespace fsdpd {

// Raises the limit as far as this process may, and returns it.
int64_t RaiseOpenFiles();

}  // namespace fsdpd
