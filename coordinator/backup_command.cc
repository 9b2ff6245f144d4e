#include "coordinator/backup_command.h"

#include <absl/strings/str_cat.h>
#include <stdio.h>

#include <CLI/CLI.hpp>
#include <string>

#include "base/clock.h"
#include "coordinator/store/sqlite_backup.h"

namespace fsdpd {
namespace {

int Tell(const absl::StatusOr<CopiedState>& copied, const std::string& done) {
  if (!copied.ok()) {
    fprintf(stderr, "%s\n", std::string(copied.status().message()).c_str());
    return 1;
  }
  printf("%s: %lld jobs, %lld bytes, schema %lld\n", done.c_str(), static_cast<long long>(copied->jobs),
         static_cast<long long>(copied->bytes), static_cast<long long>(copied->schema));
  return 0;
}

// Says what is wrong, or "".
std::string CheckNotEmpty(const std::string& path) {
  return path.empty() ? "is empty; write a path after it" : "";
}

}  // namespace

bool IsBackupCommand(int argc, char** argv) {
  return argc > 1 && (argv[1] == std::string("backup") || argv[1] == std::string("restore"));
}

int RunBackupCommand(int argc, char** argv) {
  std::string state_dir, file;
  const bool backs_up = argv[1] == std::string("backup");
  CLI::App app(backs_up ? "Copies the state as of now into one file, also while the coordinator serves."
                        : "Makes a state directory of a backup. Stop the coordinator before.",
               absl::StrCat("fsdpd-coordinator ", argv[1]));
  app.add_option("--state-dir", state_dir, backs_up ? "The coordinator's" : "To be made, or empty")
      ->required()
      ->check(CheckNotEmpty)
      ->type_name("DIR");
  app.add_option(backs_up ? "--to" : "--from", file, backs_up ? "To be made" : "What backup made")
      ->required()
      ->check(CheckNotEmpty)
      ->type_name("FILE");
  try {
    app.parse(argc - 1, argv + 1);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  if (backs_up) return Tell(BackUp(state_dir, file), absl::StrCat("wrote ", file));
  return Tell(Restore(file, state_dir, Clock::Real()->Wall()), absl::StrCat("restored to ", state_dir));
}

}  // namespace fsdpd
