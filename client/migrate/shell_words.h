// The words of a shell command as people paste it: quotes, backslashes, comments and line ends are the
// shell's. A variable is a fault at its place, since its value is elsewhere, and its word is open: the others
// can be judged all the same.
#pragma once

#include <absl/strings/string_view.h>

#include <string>
#include <vector>

#include "base/spec_fault.h"

namespace fsdpd {

constexpr char kShellVariable[] = "shell_variable";  // The rule of a variable's fault.

struct ShellWord {
  std::string text;  // A variable stands in it as it was written.
  Place place;
  std::vector<Place> variables = {};  // Where they are, as their faults say it.
  bool spreads = false;               // "${ARGS[@]}", "$@": the shell makes any number of words of it.
  bool starts_line = false;           // Of a command that goes on no further; not within an array's brackets.
  bool ends_command = false;          // What the shell does with the command: |, &&, ;, > out.log, 2>&1

  bool open() const { return !variables.empty(); }
};

// Puts in what the text itself assigns before: `TP=8`, `ARGS="--lr 1"`, and drops `${ARGS[@]}` of an array
// whose words stand in the text. The faults of those variables go.
void ExpandAssigned(std::vector<ShellWord>* words, SpecFaults* faults);

SpecFaults SplitShellWords(absl::string_view text, const std::string& file, std::vector<ShellWord>* words);

}  // namespace fsdpd
