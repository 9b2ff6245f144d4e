// Shared pieces of flag definitions: creation of commands and options, and validators of values. A Check
// function returns "" or the error text that the user reads, as CLI11 requires.
#pragma once

#include <CLI/CLI.hpp>
#include <limits>
#include <set>
#include <string>
#include <vector>

namespace fsdpd {

CLI::App* AddCommand(CLI::App* app, const std::string& name, const std::string& about,
                     const std::string& examples);

// Rejects "", which a script passes for an unset variable: --file "$SPEC".
CLI::Validator NotEmpty();

// Adds an option with a value. `type`: placeholder of the value in the help; "" for a positional argument.
template <typename Value>
CLI::Option* AddOption(CLI::App* app, const std::string& names, Value* value, const char* type,
                       const std::string& about, const CLI::Validator& check = NotEmpty()) {
  return app->add_option(names, *value, about)->check(check)->type_name(type);
}

template <typename Value>
CLI::Option* AddOption(CLI::App* app, const std::string& names, Value* value, const char* type,
                       const std::string& about, std::string (*check)(std::string&)) {
  return AddOption(app, names, value, type, about, CLI::Validator(check, ""));
}

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
