// Key names of a coordinator state below its prefix in etcd. etcd_jobs.h defines their values; leadership.h
// defines two more keys. Prefixes may be nested ("/fsdpd/" and "/fsdpd/b/" are two states), so no request may
// cover all keys with one state's prefix.
#pragma once

#include <absl/strings/str_cat.h>

#include <string>

namespace fsdpd {

constexpr const char* kEtcdDirectories[] = {"cordon/", "entry/", "event/", "job/", "node/"};
constexpr const char* kEtcdNames[] = {"schema", "written"};

// Shell command that removes the state below `prefix`, and no nested one.
inline std::string RemovalCommand(const std::string& prefix) {
  std::string command = "for name in";
  for (const char* directory : kEtcdDirectories) absl::StrAppend(&command, " ", directory);
  absl::StrAppend(&command, "; do etcdctl del --prefix ", prefix, "$name; done");
  for (const char* name : kEtcdNames) absl::StrAppend(&command, "; etcdctl del ", prefix, name);
  return command;
}

}  // namespace fsdpd
