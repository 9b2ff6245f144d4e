// Flags of the commands that look, compare and explain, and what -o takes of which command.
#pragma once

#include <string>

#include "client/command_line.h"

namespace CLI {
class App;
}  // namespace CLI

namespace fsdpd {

void AddOutputFlag(CLI::App* app, CommandLine* line);
// Why the command's data cannot be had in line.output, or "".
std::string OutputFault(const CommandLine& line);

void AddGetFlags(CLI::App* get, CommandLine* line);
void AddLogFlags(CLI::App* logs, CommandLine* line);

// wait, top, diff, explain, context, completion.
void AddVerbs(CLI::App* app, CommandLine* line);

}  // namespace fsdpd
