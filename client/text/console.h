// Console: the standard streams of a command, and their capabilities. main() passes the streams of the
// process, and tests pass string streams.
#pragma once

#include <functional>
#include <iostream>

#include "base/clock.h"
#include "client/text/interrupt.h"

namespace fsdpd {

struct Console {
  std::istream& in;
  std::ostream& out;      // Data.
  std::ostream& err;      // Messages.
  bool terminal = false;  // `out` is a terminal: lines may be redrawn.
  bool color = false;
  std::function<int()> width = [] {
    return 0;
  };                          // Current columns of `out`; 0 if not a terminal: no truncation.
  bool err_terminal = false;  // `err` is a terminal.
  std::function<int()> err_width = [] { return 0; };  // Current columns of `err`.
  Interrupt* interrupt = nullptr;
  Clock* clock = Clock::Real();
};

}  // namespace fsdpd
