// Parser of fsdpctl's command line: commands, flags, help text, and suggestions for misspelled words.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "client/flags/command_line.h"
#include "client/text/console.h"

namespace CLI {
class App;
}

namespace fsdpd {

// Names of the built-in commands. A plugin in PATH cannot replace them.
std::vector<std::string> CommandNames();

// Adds all commands and flags to `app`. They write to `line`, which must outlive `app`, when `app` parses.
void BuildApp(CLI::App* app, CommandLine* line);

// Returns an exit code if the program ends here: after help, or after a usage error, which it prints to
// console->err.
std::optional<int> ParseCommandLine(const std::vector<std::string>& arguments, CommandLine* line,
                                    Console* console);

}  // namespace fsdpd
