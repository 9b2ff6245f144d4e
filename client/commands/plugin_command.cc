// Dispatch of `fsdpctl NAME ...` to a plugin in PATH (client/flags/plugin_verbs.h), if NAME is not a built-in
// command.
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <iostream>

#include "client/commands/commands.h"
#include "client/connect/outcome.h"
#include "client/flags/command_line.h"
#include "client/flags/completion.h"
#include "client/flags/parse_command_line.h"
#include "client/flags/plugin_verbs.h"

namespace fsdpd {

std::string PluginFor(const std::vector<std::string>& arguments) {
  if (arguments.empty() || arguments[0] == kCompleteCommand) return "";
  const char* path = std::getenv("PATH");
  const std::string program = path == nullptr ? "" : PluginProgram(arguments[0], path);
  if (program.empty()) return "";
  const std::vector<std::string> own = CommandNames();
  return std::find(own.begin(), own.end(), arguments[0]) == own.end() ? program : "";
}

int ExecPlugin(const std::string& program, const std::vector<std::string>& arguments) {
  std::vector<std::string> words(arguments);
  words[0] = program;
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  execv(program.c_str(), pointers.data());
  // The program exists but cannot be executed.
  std::cerr << "fsdpctl: cannot run " << program << ": " << std::strerror(errno) << " [PROGRAM_FAILED]\n";
  return kExitUsage;
}

}  // namespace fsdpd
