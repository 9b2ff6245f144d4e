// What flags of several commands share: how a command is made, and what its values may be. Each check's text
// is what a person reads who wrote something else.
#pragma once

#include <limits>
#include <string>

namespace CLI {
class App;
class Validator;
}  // namespace CLI

namespace fsdpd {

CLI::App* AddCommand(CLI::App* app, const std::string& name, const std::string& about,
                     const std::string& examples);

// `--file ""`, which a script with an unset variable says, is no file.
CLI::Validator NotEmpty();

// A whole number from `least`; in words, where CLI11's own check prints the largest double.
CLI::Validator WholeNumber(int least, int most = std::numeric_limits<int>::max());

// Above 0, a day at most.
std::string CheckSeconds(std::string& text);

// As CheckSeconds, of what a person waits for.
std::string CheckPatience(std::string& text);

// As client/log_choice.h reads it.
std::string CheckSince(std::string& text);

}  // namespace fsdpd
