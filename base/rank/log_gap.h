// Notice of the agent in the place of dropped lines of a rank log. A client that reads a log again after a
// lost connection skips the lines that it has shown, and reads from the notice how many lines were dropped.
#pragma once

#include <absl/strings/string_view.h>

#include <cstdint>
#include <string>

namespace fsdpd {

// `lines` < 0: unknown.
std::string LogGapNotice(int64_t bytes, int64_t lines, int64_t max_bytes);

// Number of lines in the notice; 0 if unknown, and for other texts.
int64_t LinesOfLogGap(absl::string_view notice);

}  // namespace fsdpd
