// Suggestion of a command for an unknown word, for "did you mean X?".
#pragma once

#include <absl/strings/string_view.h>

#include <string>
#include <vector>

namespace fsdpd {

// Returns the command for a name that other tools use ("rm": delete), else the most similar of `candidates`,
// or "" if none is similar.
std::string SuggestCommand(absl::string_view word, std::vector<std::string> candidates);

}  // namespace fsdpd
