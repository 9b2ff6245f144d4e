// `fsdpd-coordinator backup --state-dir DIR --to FILE` and `restore --from FILE --state-dir DIR`
// (sqlite_backup.h), or --store etcd://... instead of --state-dir (etcd_backup.h). Exit codes as the
// daemon's: 0 done, 1 an error, 2 a wrong command line.
#pragma once

namespace fsdpd {

bool IsBackupCommand(int argc, char** argv);
// REQUIRES: IsBackupCommand().
int RunBackupCommand(int argc, char** argv);

}  // namespace fsdpd
