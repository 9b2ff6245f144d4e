// Text for people: suggestions for misspelt names, sizes and durations in the units people use.
#pragma once

#include <absl/status/statusor.h>
#include <absl/strings/string_view.h>

#include <cstdint>
#include <string>
#include <vector>

namespace fsdpd {

// The candidate nearest to `word` by edit distance, or "" when none is near enough to be what was meant. A
// name with other numbers is never meant: h100 for a100 and llama3-70b for llama3-405b are other things.
std::string Nearest(absl::string_view word, const std::vector<std::string>& candidates);

std::string HumanBytes(int64_t bytes);     // "1.5 GiB", "512 B"
std::string HumanSeconds(double seconds);  // "950 ms", "42 s", "3 m 05 s", "2 h 10 m"
std::string HumanCount(double count);      // "8.0 B", "1.2 M", "950"

// At most so many bytes of UTF-8, cut where a character ends.
std::string CutText(absl::string_view text, size_t bytes);

// "512", "64KiB", "1.5GiB", "2GB". Fails on anything else and on what does not fit in 63 bits.
absl::StatusOr<int64_t> ParseBytes(absl::string_view text);

}  // namespace fsdpd
