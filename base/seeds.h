// How many random cases a property test tries: what it says, times FSDPD_SEED_FACTOR (1 when unset), so that
// a night tries more of them and a sanitizer fewer, in one place. A test that calls this has the tag `seeds`
// in its BUILD file, by which `tests/run nightly` finds it.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "base/check.h"

namespace fsdpd {

inline int Seeds(int at_commit) {
  const char* text = std::getenv("FSDPD_SEED_FACTOR");
  if (text == nullptr) return at_commit;
  char* end = nullptr;
  const double factor = std::strtod(text, &end);
  // A night that tested nothing because of a slip of the pen would look like a good one.
  FSDPD_CHECK(end != text && *end == '\0' && factor > 0 && factor <= 1e4);
  return std::max(1, static_cast<int>(std::lround(at_commit * factor)));
}

}  // namespace fsdpd
