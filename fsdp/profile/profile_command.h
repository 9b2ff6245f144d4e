// `fsdpd-rank --profile-device cpu|cuda [--ranks N]`, which fsdpctl profile-device runs. Prints the profile
// as JSON to `out`, and everything else to `err`: notes, and "measuring 3/9: what" before each stage (parsed
// by client/text/stage_screen.h).
#pragma once

#include <ostream>
#include <string>
#include <vector>

namespace fsdpd {

// `arguments` without the program's name; true if they start with the flag.
bool IsProfileCommand(const std::vector<std::string>& arguments);

// Returns the exit code: 0, 1 if the measurement failed, 2 for invalid usage.
int RunRankProfile(const std::vector<std::string>& arguments, std::ostream* out, std::ostream* err);

}  // namespace fsdpd
