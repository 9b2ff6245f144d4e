// Plugins, like those of kubectl: if fsdpctl has no command NAME, `fsdpctl NAME ...` runs the program
// fsdpctl-NAME from PATH with the words after NAME. The plugin replaces fsdpctl (execv), so stdin, signals
// and the exit code are those of the plugin. Flags of fsdpctl before NAME are rejected, because the plugin
// would not receive them.
//
// Relative directories in PATH are skipped, so that a file in the current directory never becomes a command.
// The first program of a name in PATH is used, as in a shell. No state; the functions read the directories of
// PATH.
#pragma once

#include <absl/strings/string_view.h>

#include <string>
#include <vector>

namespace fsdpd {

struct PluginVerb {
  std::string name;     // "data"
  std::string program;  // "/usr/bin/fsdpctl-data"
};

// Path of the plugin `name`; empty if absent, or if `name` is not a valid plugin name.
std::string PluginProgram(absl::string_view name, absl::string_view path);

// All plugins in order of their names, without those that the built-in `commands` hide.
std::vector<PluginVerb> PluginVerbs(const std::vector<std::string>& commands, absl::string_view path);

// Installation command of a plugin that this project ships separately; empty for any other name.
std::string InstallHint(absl::string_view name);

// The plugin section of `fsdpctl --help`: one line for each plugin, including those of this project that are
// not installed; empty if absent.
std::string PluginHelp(const std::vector<PluginVerb>& verbs);

}  // namespace fsdpd
