#include "base/check.h"

#include <cstdlib>

#include "base/log.h"

namespace fsdpd {

void CheckFailed(const char* file, int line, absl::string_view what) {
  LogError("check failed at %s:%d: %s", file, line, what);
  std::abort();
}

}  // namespace fsdpd
