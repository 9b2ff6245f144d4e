// Verbs that other programs add: `fsdpctl NAME ...`, of which fsdpctl has no command NAME, is the program
// fsdpctl-NAME of PATH with the words after NAME. fsdpctl is replaced by it, so stdin, signals and the exit
// code are the program's own; flags of fsdpctl before NAME are not taken, since they would be lost.
//
// A directory of PATH that is relative is passed over: what a person's current directory happens to hold is
// no command. Of programs with one name the first on PATH counts, as for a shell. Pure but for the
// directories read.
#pragma once

#include <absl/strings/string_view.h>

#include <string>
#include <vector>

namespace fsdpd {

struct PluginVerb {
  std::string name;     // "data"
  std::string program;  // "/usr/bin/fsdpctl-data"
};

// The program of one verb; empty where there is none, or `name` can be no verb's.
std::string PluginProgram(absl::string_view name, absl::string_view path);

// All of them, by name, without those of `commands`, which fsdpctl has itself.
std::vector<PluginVerb> PluginVerbs(const std::vector<std::string>& commands, absl::string_view path);

// How a verb of ours is installed that comes as a program of its own; empty for any other.
std::string InstallHint(absl::string_view name);

// For `fsdpctl --help`: one a line, those that are not installed too; empty where there is nothing to say.
std::string PluginHelp(const std::vector<PluginVerb>& verbs);

}  // namespace fsdpd
