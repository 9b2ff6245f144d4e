// Flags of `events` and of labels.
#pragma once

#include "client/flags/command_line.h"

namespace CLI {
class App;
}  // namespace CLI

namespace fsdpd {

// Adds --label to submit, and --selector to `nodes` and the commands that act on jobs. REQUIRES: `app` has
// these commands.
void AddLabelFlags(CLI::App* app, CommandLine* line);

// Error text if a command that acts on jobs was given neither a job nor a selector; "" otherwise.
std::string MissingJobError(const CommandLine& line);

void AddEventCommands(CLI::App* app, CommandLine* line);

}  // namespace fsdpd
