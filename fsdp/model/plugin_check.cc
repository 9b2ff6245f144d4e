// FSDPD_CHECK's end inside a plug-in: base/check.cc without the log, which would bring Abseil's static
// archives into a shared object that they are not built for.
#include <cstdio>
#include <cstdlib>

#include "base/check.h"

namespace fsdpd {

void CheckFailed(const char* file, int line, absl::string_view what) {
  std::fprintf(stderr, "plug-in: check failed at %s:%d: %.*s\n", file, line, static_cast<int>(what.size()),
               what.data());
  std::abort();
}

}  // namespace fsdpd
