#include "base/check.h"

#include <absl/strings/str_cat.h>

#include <cstdlib>

#include "base/check_guard.h"
#include "base/log.h"

namespace fsdpd {

void CheckFailed(const char* file, int line, absl::string_view what) {
  const std::string place = absl::StrCat(file, ":", line, ": ", what);
  LogError("check failed at %s", place);
  if (ChecksAreGuarded()) throw CheckFailure{place};
  std::abort();
}

}  // namespace fsdpd
