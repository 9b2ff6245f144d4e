// Flags of list requests (--order-by), and of conditional requests (--etag).
#pragma once

#include "client/flags/command_line.h"

namespace CLI {
class App;
}  // namespace CLI

namespace fsdpd {

// REQUIRES: `app` has the commands, with their --selector and JOB.
void AddListFlags(CLI::App* app, CommandLine* line);

}  // namespace fsdpd
