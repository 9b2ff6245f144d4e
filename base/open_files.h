// How many files and connections a process may have open. A shell gives it 1024 of some hundred thousands
// that it may ask for. gRPC 1.51 never listens again once it found none left for a connection, so a server
// asks for all.
#pragma once

#include <cstdint>

namespace fsdpd {

// Raises the limit as far as this process may, and returns what it is then.
int64_t RaiseOpenFiles();

}  // namespace fsdpd
