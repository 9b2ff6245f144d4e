// The flags by which the coordinator filters and orders its lists, and by which it is asked for something
// only as long as a job is as it was seen.
#pragma once

#include "client/command_line.h"

namespace CLI {
class App;
}  // namespace CLI

namespace fsdpd {

// REQUIRES: the commands are there, and their --selector and JOB.
void AddListFlags(CLI::App* app, CommandLine* line);

}  // namespace fsdpd
