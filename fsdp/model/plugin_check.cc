// FSDPD_CHECK failure handler for plug-ins: base/check.cc without logging, as Abseil's static archives are
// not built for shared objects.
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
