// Splitter of pasted shell commands and scripts into words, with the shell's rules for quotes, backslashes,
// comments and line ends. A variable without a known value is an error at its place and makes its word
// `open`; the other words are still usable.
#pragma once

#include <absl/strings/string_view.h>

#include <string>
#include <vector>

#include "base/spec_text/located_violation.h"

namespace fsdpd {

constexpr char kShellVariable[] = "shell_variable";  // The rule of errors about variables.

struct ShellWord {
  std::string text;  // Contains unexpanded variables as written: "$TP".
  Place place;
  LocatedViolations unknown = {};  // An error for each unexpanded variable.
  bool open = false;               // The text contains an unexpanded variable.
  bool spreads = false;            // "${ARGS[@]}", "$@": expands to any number of words.
  bool starts_line = false;        // First word of a line that is not continued; false inside an array.
  bool ends_command = false;       // A shell operator after the command: |, &&, ;, > out.log, 2>&1
};

// Appends the words of `text`. Returns errors: unclosed quotes, and the unknown variables of all words. With
// `expand`, expands variables that the text assigns earlier (`TP=8`, `ARGS="--lr 1"`), and drops `${ARGS[@]}`
// of an array whose words are in the text.
LocatedViolations SplitShellWords(absl::string_view text, const std::string& file,
                                  std::vector<ShellWord>* words, bool expand = false);

}  // namespace fsdpd
