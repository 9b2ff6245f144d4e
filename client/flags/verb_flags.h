// Flags of get, logs, wait, top, diff, explain, context and completion, and the values of -o for each
// command.
#pragma once

#include <string>

#include "client/flags/command_line.h"

namespace CLI {
class App;
}  // namespace CLI

namespace fsdpd {

void AddOutputFlag(CLI::App* app, CommandLine* line);
// Error text if the command does not support line.output; "" otherwise.
std::string OutputFlagError(const CommandLine& line);

void AddGetFlags(CLI::App* get, CommandLine* line);
void AddLogFlags(CLI::App* logs, CommandLine* line);

// wait, top, diff, explain, context, completion.
void AddVerbs(CLI::App* app, CommandLine* line);

}  // namespace fsdpd
