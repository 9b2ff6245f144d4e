// Number of random cases of a property test: `at_commit` times FSDPD_SEED_FACTOR (default 1), so that nightly
// runs try more and sanitizers fewer. A test that calls this has the tag `seeds` in its BUILD file, by which
// `tests/run nightly` finds it.
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
  // A typo must not turn a nightly run into one without tests.
  FSDPD_CHECK(end != text && *end == '\0' && factor > 0 && factor <= 1e4);
  return std::max(1, static_cast<int>(std::lround(at_commit * factor)));
}

}  // namespace fsdpd
