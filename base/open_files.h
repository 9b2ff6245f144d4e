// How many files and connections a process may have open. A shell gives it 1024 of some hundred thousands
// that it may ask for.
#pragma once

#include <cstdint>

namespace fsdpd {

// Raises the limit as far as this process may, and returns what it is then.
int64_t RaiseOpenFiles();

}  // namespace fsdpd
