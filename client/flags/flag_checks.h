// Shared pieces of flag definitions: creation of a command, and validators of values. A Check function
// returns "" or the error text that the user reads, as CLI11 requires.
#pragma once

#include <limits>
#include <set>
#include <string>
#include <vector>

namespace CLI {
class App;
class Validator;
}  // namespace CLI

namespace fsdpd {

CLI::App* AddCommand(CLI::App* app, const std::string& name, const std::string& about,
                     const std::string& examples);

// Rejects "", which a script passes for an unset variable: --file "$SPEC".
CLI::Validator NotEmpty();

// Accepts integers from `least` to `most`. CLI11's own range check prints the largest double as the bound.
CLI::Validator WholeNumber(int least, int most = std::numeric_limits<int>::max());

// Accepts seconds above 0, up to one day.
std::string CheckSeconds(std::string& text);

// Like CheckSeconds, for how long a user waits.
std::string CheckWaitSeconds(std::string& text);

// Accepts the values of ParseSince() (client/text/log_choice.h).
std::string CheckSince(std::string& text);

// The subset of --server, --context, --coordinator-ca, --token-file and --timeout that occurs in `words`.
// CLI11 does not report whether a value came from a flag, an environment variable or a default.
std::set<std::string> AccessFlags(const std::vector<std::string>& words);

}  // namespace fsdpd
