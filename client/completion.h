// What a shell offers for the word that stands before the cursor.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace CLI {
class App;
}  // namespace CLI

namespace fsdpd {

// What the shells' scripts call, with the words after the program's name up to the cursor.
constexpr char kCompleteCommand[] = "__complete";
// Printed alone where a path stands: the shell knows those.
constexpr char kPathsInstead[] = ":files";

enum class NameKind { kJobs, kNodes, kContexts, kPlugins };
// Names that `command` takes; asked once at most.
using NameSource = std::function<std::vector<std::string>(NameKind kind, const std::string& command)>;

// Those that begin as the last of `words` does, which may be empty.
std::vector<std::string> Candidates(const CLI::App& app, const std::vector<std::string>& words,
                                    const NameSource& names);

// Of "bash", "zsh" or "fish".
std::string CompletionScript(const std::string& shell);

}  // namespace fsdpd
