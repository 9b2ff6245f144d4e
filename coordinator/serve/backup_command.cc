#include "coordinator/serve/backup_command.h"

#include <absl/strings/str_cat.h>
#include <stdio.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <optional>
#include <string>

#include "base/check.h"
#include "base/clock.h"
#include "base/net/quiet_grpc.h"
#include "base/process/cli_app.h"
#include "base/process/file_flags.h"
#include "coordinator/serve/etcd_flags.h"
#include "coordinator/store/etcd_backup.h"
#include "coordinator/store/sqlite_backup.h"

namespace fsdpd {
namespace {

int Tell(const absl::StatusOr<CopiedState>& copied, const std::string& done) {
  if (!copied.ok()) {
    fprintf(stderr, "%s\n", WithFlag({}, copied.status()).c_str());
    return 1;
  }
  printf("%s: %lld jobs, %lld bytes, schema %lld\n", done.c_str(), static_cast<long long>(copied->jobs),
         static_cast<long long>(copied->bytes), static_cast<long long>(copied->schema));
  return 0;
}

// Returns the error, or "".
std::string CheckNotEmpty(const std::string& path) { return path.empty() ? "is empty; pass a path" : ""; }

absl::StatusOr<CopiedState> CopyEtcd(bool backs_up, const std::string& file, const EtcdFlags& flags) {
  QuietGrpc();
  FSDPD_ASSIGN_OR_RETURN(const std::unique_ptr<EtcdClient> etcd,
                         EtcdClient::Make(flags.etcd, Clock::Real()->Wall()));
  return backs_up ? BackUpEtcd(etcd.get(), flags.prefix, file) : RestoreEtcd(file, etcd.get(), flags.prefix);
}

}  // namespace

bool IsBackupCommand(int argc, char** argv) {
  return argc > 1 && (argv[1] == std::string("backup") || argv[1] == std::string("restore"));
}

int RunBackupCommand(int argc, char** argv) {
  std::string state_dir, file;
  EtcdFlags etcd;
  const bool backs_up = argv[1] == std::string("backup");
  const std::unique_ptr<CLI::App> app =
      MakeApp(backs_up ? "Copy the state to one file; the coordinator may be running."
                       : "Restore a backup to a directory or to etcd; stop all coordinators first.",
              absl::StrCat("fsdpd-coordinator ", argv[1]));
  CLI::Option* const in_directory =
      app->add_option("--state-dir", state_dir,
                      backs_up ? "Copy the state in this directory"
                               : "Create this state directory; it may exist if empty")
          ->check(CheckNotEmpty)
          ->type_name("DIR");
  CLI::Option* const in_etcd = DeclareStore(
      app.get(),
      backs_up ? "Copy the state in etcd" : "Restore to etcd; PREFIX must be empty, without a leader", &etcd);
  in_directory->excludes(in_etcd);
  DeclareEtcdFiles(app.get(), in_etcd, &etcd);
  app->add_option(backs_up ? "--to" : "--from", file,
                  backs_up ? "Write the backup to this file" : "Restore the backup in this file")
      ->required()
      ->check(CheckNotEmpty)
      ->type_name("FILE");
  if (const std::optional<int> code = ParseArguments(app.get(), argc - 1, argv + 1); code.has_value())
    return *code;
  const std::string wrong = state_dir.empty() && etcd.store.empty()
                                ? "--state-dir is required (or --store for etcd)"
                                : WhyNotReached(etcd);
  if (!wrong.empty()) {
    fprintf(stderr, "%s [INVALID_FLAG]\n", wrong.c_str());
    return 2;
  }
  const std::string done =
      backs_up ? absl::StrCat("wrote ", file)
               : absl::StrCat("restored to ",
                              etcd.store.empty() ? state_dir : absl::StrCat("etcd, below ", etcd.prefix));
  if (!etcd.store.empty()) return Tell(CopyEtcd(backs_up, file, etcd), done);
  return Tell(backs_up ? BackUp(state_dir, file) : Restore(file, state_dir, Clock::Real()->Wall()), done);
}

}  // namespace fsdpd
