// `fsdpctl NAME ...` where NAME is no command of fsdpctl's but a program of PATH (client/plugin_verbs.h).
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <iostream>

#include "client/command_line.h"
#include "client/commands.h"
#include "client/completion.h"
#include "client/outcome.h"
#include "client/plugin_verbs.h"

namespace fsdpd {

std::string ProgramOf(const std::vector<std::string>& arguments) {
  if (arguments.empty() || arguments[0] == kCompleteCommand) return "";
  const char* path = std::getenv("PATH");
  const std::string program = path == nullptr ? "" : PluginProgram(arguments[0], path);
  if (program.empty()) return "";
  const std::vector<std::string> own = CommandNames();
  return std::find(own.begin(), own.end(), arguments[0]) == own.end() ? program : "";
}

int RunInstead(const std::string& program, const std::vector<std::string>& arguments) {
  std::vector<std::string> words(arguments);
  words[0] = program;
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  execv(program.c_str(), pointers.data());
  // As a shell says it: found, and not to be run.
  std::cerr << "fsdpctl: cannot run " << program << ": " << std::strerror(errno) << "\n";
  return kExitUsage;
}

}  // namespace fsdpd
