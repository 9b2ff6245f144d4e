// Texts for users: suggestions for misspelled names, human-readable sizes and durations.
#pragma once

#include <absl/status/statusor.h>
#include <absl/strings/string_view.h>

#include <cstdint>
#include <string>
#include <vector>

namespace fsdpd {

// The candidate nearest to `word` by edit distance, or "" if none is near enough. Names with different
// numbers are never suggested: h100 for a100, or llama3-70b for llama3-405b.
std::string Nearest(absl::string_view word, const std::vector<std::string>& candidates);

std::string HumanBytes(int64_t bytes);     // "1.5 GiB", "512 B"
std::string HumanSeconds(double seconds);  // "950 ms", "42 s", "3 m 05 s", "2 h 10 m"
std::string HumanCount(double count);      // "8.0 B", "1.2 M", "950"

// Truncates UTF-8 to at most `bytes` bytes, at a character boundary.
std::string CutText(absl::string_view text, size_t bytes);

// "512", "64KiB", "1.5GiB", "2GB". Fails for other texts and for values that do not fit in 63 bits.
absl::StatusOr<int64_t> ParseBytes(absl::string_view text);

}  // namespace fsdpd
