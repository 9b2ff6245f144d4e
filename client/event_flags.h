// The flags of events and of labels.
#pragma once

#include "client/command_line.h"

namespace CLI {
class App;
}  // namespace CLI

namespace fsdpd {

// --label of submit, and --selector of the commands that act on jobs. REQUIRES: those are there.
void AddLabelFlags(CLI::App* app, CommandLine* line);

// What to say where a command that acts on a job names none; "" where it does, or acts on none.
std::string MissingJob(const CommandLine& line);

void AddEventCommands(CLI::App* app, CommandLine* line);

}  // namespace fsdpd
