#include "base/process/cli_app.h"

#include <CLI/CLI.hpp>

namespace fsdpd {

std::unique_ptr<CLI::App> MakeApp(const std::string& about, const std::string& name) {
  return std::make_unique<CLI::App>(about, name);
}

CLI::App* AddSubcommand(CLI::App* app, const std::string& name, const std::string& about) {
  return app->add_subcommand(name, about);
}

std::optional<int> ParseArguments(CLI::App* app, int argc, char** argv) {
  try {
    app->parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    app->failure_message([](const CLI::App*, const CLI::Error& failure) {
      return std::string(failure.what()) + " [INVALID_FLAG]\nRun with --help for more information.\n";
    });
    return app->exit(error) == 0 ? 0 : kUsageError;
  }
  return std::nullopt;
}

void ParseWords(CLI::App* app, const std::vector<std::string>& words) {
  // CLI11 consumes the vector from the back.
  app->parse(std::vector<std::string>(words.rbegin(), words.rend()));
}

CLI::Validator OneOf(const std::vector<std::string>& words) { return CLI::IsMember(words); }

CLI::Validator InRange(int least, int most) { return CLI::Range(least, most); }

CLI::Validator InRange(int64_t least, int64_t most) { return CLI::Range(least, most); }

}  // namespace fsdpd
