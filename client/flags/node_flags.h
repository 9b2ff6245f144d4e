// Flags of the node commands: nodes, cordon, uncordon, preflight, drain, node delete.
#pragma once

#include "client/flags/command_line.h"

namespace CLI {
class App;
}  // namespace CLI

namespace fsdpd {

void AddNodeCommands(CLI::App* app, CommandLine* line);

}  // namespace fsdpd
