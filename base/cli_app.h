// Parts of CLI11 that cost most to compile, compiled once: a source that constructs a CLI::App itself
// compiles the parser, the help formatter and the reader of configuration files, for two seconds. Everything
// else is used from CLI/CLI.hpp. Headers that declare flags need its forward declarations only.
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

// `about` heads the help text, `name` its usage line.
std::unique_ptr<CLI::App> MakeApp(const std::string& about, const std::string& name);

// The app owns it.
CLI::App* AddSubcommand(CLI::App* app, const std::string& name, const std::string& about);

// The exit code of a process that ends here, having printed its help, its version or a usage error.
// Nothing where the arguments were read.
std::optional<int> ParseArguments(CLI::App* app, int argc, char** argv);

// In order, without the name of the program. Throws CLI::ParseError, for callers that print usage errors
// themselves.
void ParseWords(CLI::App* app, const std::vector<std::string>& words);

// Checks of a value; their text is CLI11's own.
CLI::Validator OneOf(const std::vector<std::string>& words);
CLI::Validator InRange(int least, int most);
CLI::Validator InRange(int64_t least, int64_t most);

}  // namespace fsdpd
