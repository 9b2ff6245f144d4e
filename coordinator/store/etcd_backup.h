// A state in etcd as one file, and back: what `fsdpd-coordinator backup --store` and `restore --store` do.
// The file is that of sqlite_backup.h, so that a state moves from SQLite to etcd by a backup of the one and a
// restore to the other, and likewise back.
//
// Errors: those of sqlite_backup.h for the file, and of etcd_client.h. NOT_FOUND where nothing is below the
// prefix; FAILED_PRECONDITION where a restore finds something there, or somebody who leads;
// RESOURCE_EXHAUSTED for a job that etcd takes not, and for its room. After an error of a restore nothing is
// there, but for one whose etcd went away: what it had written is refused by coordinators and restores alike,
// until somebody removes it.
//
// Thread-safe: functions of etcd.
#pragma once

#include <absl/status/statusor.h>

#include <string>

#include "coordinator/store/etcd_client.h"
#include "coordinator/store/sqlite_backup.h"

namespace fsdpd {

// What coordinators that stand by are told while a restore leads, in the place of an address.
constexpr char kRestoreLeads[] = "a-restore";

// As of one moment, also while a coordinator leads, which it does not hold up.
absl::StatusOr<CopiedState> BackUpEtcd(EtcdClient* etcd, const std::string& prefix, const std::string& to);

// Leads below `prefix` meanwhile, so that nobody else does. A leader counts its generation by date
// (state_store.h), also the next one here.
absl::StatusOr<CopiedState> RestoreEtcd(const std::string& from, EtcdClient* etcd, const std::string& prefix);

}  // namespace fsdpd
