// Shell completion: candidates for the word at the cursor, and the scripts of bash, zsh and fish. Pure
// functions.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace CLI {
class App;
}  // namespace CLI

namespace fsdpd {

// The hidden command that the scripts call, with the words between the program's name and the cursor.
constexpr char kCompleteCommand[] = "__complete";
// Printed as the only candidate if a path is expected: the shell completes paths itself.
constexpr char kCompletePaths[] = ":files";

enum class NameKind { kJobs, kNodes, kContexts, kPlugins };
// Returns the names of `kind` that `command` accepts. Called at most once, because it may call a coordinator.
using NameSource = std::function<std::vector<std::string>(NameKind kind, const std::string& command)>;

// Candidates that start with the last of `words`, which may be empty.
std::vector<std::string> Candidates(const CLI::App& app, const std::vector<std::string>& words,
                                    const NameSource& names);

// `shell`: "bash", "zsh" or "fish".
std::string CompletionScript(const std::string& shell);

}  // namespace fsdpd
