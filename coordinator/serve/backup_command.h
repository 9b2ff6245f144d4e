// Subcommands `fsdpd-coordinator backup --state-dir DIR --to FILE` and `restore --from FILE --state-dir DIR`
// (sqlite_backup.h), or with --store etcd://... instead of --state-dir (etcd_backup.h). Exit codes are those
// of the daemon: 0 done, 1 error, 2 invalid command line.
#pragma once

namespace fsdpd {

bool IsBackupCommand(int argc, char** argv);
// REQUIRES: IsBackupCommand().
int RunBackupCommand(int argc, char** argv);

}  // namespace fsdpd
