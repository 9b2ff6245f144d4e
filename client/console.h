// Where a command reads and writes, and what it may assume of it. Tests pass strings; main() passes the
// process's.
#pragma once

#include <functional>
#include <iostream>

#include "base/clock.h"
#include "client/interrupt.h"

namespace fsdpd {

struct Console {
  std::istream& in;
  std::ostream& out;      // Data.
  std::ostream& err;      // Messages.
  bool terminal = false;  // `out` is one: lines may be drawn over.
  bool color = false;
  std::function<int()> width = [] { return 0; };  // Columns now; 0 when `out` is no terminal: nothing is cut.
  bool err_terminal = false;                      // `err` is one.
  std::function<int()> err_width = [] { return 0; };  // Its columns now.
  Interrupt* interrupt = nullptr;
  Clock* clock = Clock::Real();
};

}  // namespace fsdpd
