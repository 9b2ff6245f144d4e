// `fsdpd-rank --profile-device cpu|cuda [--ranks N]`, which fsdpctl profile-device runs: the profile as JSON
// on `out`, everything else on `err`: "measuring 3/9: what" before each part (client/stage_screen.h reads
// it), and notes.
#pragma once

#include <ostream>
#include <string>
#include <vector>

namespace fsdpd {

// `arguments` without the program's name; true when they begin with the flag.
bool IsProfileCommand(const std::vector<std::string>& arguments);

// The exit code: 0, 1 when it could not be measured, 2 for wrong use.
int RunProfileCommand(const std::vector<std::string>& arguments, std::ostream* out, std::ostream* err);

}  // namespace fsdpd
