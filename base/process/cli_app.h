// The parts of CLI11 that are slow to compile, compiled once: a file that constructs a CLI::App compiles the
// parser, the help formatter and the config reader, which takes two seconds. Use CLI/CLI.hpp for everything
// else. Headers that declare flags need only its forward declarations.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace CLI {
class App;
class Validator;
}  // namespace CLI

namespace fsdpd {

constexpr int kUsageError = 2;  // Exit code.

// `about` is the first line of the help text, `name` the program name in its usage line.
std::unique_ptr<CLI::App> MakeApp(const std::string& about, const std::string& name);

// Owned by the app.
CLI::App* AddSubcommand(CLI::App* app, const std::string& name, const std::string& about);

// Parses the arguments. Returns the exit code if the process should exit, after printing its help, version or
// a usage error; empty otherwise.
std::optional<int> ParseArguments(CLI::App* app, int argc, char** argv);

// Parses `words`, without the program name. Throws CLI::ParseError, for callers that print usage errors
// themselves.
void ParseWords(CLI::App* app, const std::vector<std::string>& words);

// Validators; their messages are those of CLI11.
CLI::Validator OneOf(const std::vector<std::string>& words);
CLI::Validator InRange(int least, int most);
CLI::Validator InRange(int64_t least, int64_t most);

}  // namespace fsdpd
