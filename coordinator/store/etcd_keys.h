// The names of a state's keys below its prefix in etcd (etcd_jobs.h says what they have, leadership.h the two
// that are not here). Another state's prefix may be below the same one ("/fsdpd/" and "/fsdpd/b/"), so that
// nothing that is for one state asks for all that begins with its prefix.
#pragma once

#include <absl/strings/str_cat.h>

#include <string>

namespace fsdpd {

constexpr const char* kEtcdDirectories[] = {"cordon/", "entry/", "event/", "job/", "node/"};
constexpr const char* kEtcdNames[] = {"schema", "written"};

// The command that removes the state below `prefix`, and no other.
inline std::string HowToRemoveFromEtcd(const std::string& prefix) {
  std::string command = "for name in";
  for (const char* directory : kEtcdDirectories) absl::StrAppend(&command, " ", directory);
  absl::StrAppend(&command, "; do etcdctl del --prefix ", prefix, "$name; done");
  for (const char* name : kEtcdNames) absl::StrAppend(&command, "; etcdctl del ", prefix, name);
  return command;
}

}  // namespace fsdpd
