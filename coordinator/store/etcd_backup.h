// Backup and restore of a coordinator state in etcd, in files of the format of sqlite_backup.h: a backup of a
// SQLite state can be restored to etcd and vice versa.
//
// Errors: those of sqlite_backup.h for the file, and those of etcd_client.h. NOT_FOUND if the prefix has no
// keys. A restore returns FAILED_PRECONDITION if the prefix has keys or a leader, and RESOURCE_EXHAUSTED if
// etcd refuses a job's size or is out of space. A restore that fails removes what it wrote. If etcd became
// unreachable first, the partial state stays; coordinators and restores refuse it until a user removes it.
//
// Thread-safe.
#pragma once

#include <absl/status/statusor.h>

#include <string>

#include "coordinator/store/etcd_client.h"
#include "coordinator/store/sqlite_backup.h"

namespace fsdpd {

// The restore's leadership has this in place of an address. Standby coordinators read it.
constexpr char kRestoreLeads[] = "a-restore";

// A consistent snapshot. Does not block a coordinator that leads.
absl::StatusOr<CopiedState> BackUpEtcd(EtcdClient* etcd, const std::string& prefix, const std::string& to);

// Holds the leadership of `prefix` while it writes, so that no coordinator can lead. Generations are derived
// from the date (state_store.h); the next leader's generation is larger than the restored one.
absl::StatusOr<CopiedState> RestoreEtcd(const std::string& from, EtcdClient* etcd, const std::string& prefix);

}  // namespace fsdpd
