// The agent's word on lines of a rank's log that are there no more, in the place of them. Who reads a log
// again after a lost connection, and counts off the lines that were shown, reads from it how many these are.
#pragma once

#include <absl/strings/string_view.h>

#include <cstdint>
#include <string>

namespace fsdpd {

// `lines` < 0: it is not known how many.
std::string LogGapNotice(int64_t bytes, int64_t lines, int64_t max_bytes);

// 0 of any other word, and where it is not known.
int64_t LinesOfLogGap(absl::string_view notice);

}  // namespace fsdpd
