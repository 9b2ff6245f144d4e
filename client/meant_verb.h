// The command that an unknown word stands for, for "did you mean X?".
#pragma once

#include <absl/strings/string_view.h>

#include <string>
#include <vector>

namespace fsdpd {

// By what other tools call it ("rm" is delete), else the nearest of `candidates`; "" where nothing is near.
std::string MeantVerb(absl::string_view word, std::vector<std::string> candidates);

}  // namespace fsdpd
