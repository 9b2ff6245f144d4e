// The words of a shell command as people paste it: quotes, backslashes, comments and line ends are the
// shell's. Nothing is expanded: a variable is a fault at its place, since its value is elsewhere.
#pragma once

#include <absl/strings/string_view.h>

#include <string>
#include <vector>

#include "client/spec_fault.h"

namespace fsdpd {

struct ShellWord {
  std::string text;
  Place place;
};

SpecFaults SplitShellWords(absl::string_view text, const std::string& file, std::vector<ShellWord>* words);

}  // namespace fsdpd
