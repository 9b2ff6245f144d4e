// Key schema of a coordinator state in etcd, and its readers. Below a prefix:
//
//   job/ID           the complete v1::Job
//   entry/ID         a v1::Job with only the fields that list queries need (etcd_index.h)
//   node/NAME        v1::Node
//   cordon/NAME      v1::Cordon
//   event/SEQUENCE   v1::Event (event_log.h); the sequence is zero-padded to 19 digits
//   schema           version of this format
//
// job/ID and entry/ID are written in one transaction. A list reads the entries, and then only the jobs of one
// page. A leader reads the entries once, because only the leader writes. A standby coordinator reads them for
// each list, all at one revision.
//
// Errors: those of etcd_client.h, and DATA_LOSS. Thread-safe.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <map>
#include <string>

#include "coordinator/store/etcd_client.h"
#include "coordinator/store/etcd_index.h"
#include "coordinator/store/state_content.h"
#include "coordinator/store/state_store.h"

namespace fsdpd {

// Names of keys, besides those of leadership.h. Prefixes may be nested ("/fsdpd/" and "/fsdpd/b/" are two
// states), so no request may cover all keys with one state's prefix.
constexpr const char* kEtcdDirectories[] = {"cordon/", "entry/", "event/", "job/", "node/"};
constexpr const char* kEtcdNames[] = {"schema", "written"};

// The smallest key after all keys with this prefix. REQUIRES: it ends in '/'.
std::string EndOfPrefix(std::string prefix);
// Shell command that removes the state below `prefix`, and no nested one.
std::string RemovalCommand(const std::string& prefix);

class EtcdJobs {
 public:
  static constexpr int64_t kSchema = 2;
  // Schema while a restore writes (etcd_backup.h). Coordinators of all releases refuse it as too new and do
  // not lead.
  static constexpr int64_t kSchemaOfPartialRestore = 1'000'000'000;

  EtcdJobs(EtcdClient* etcd, std::string prefix) : etcd_(etcd), prefix_(std::move(prefix)) {}

  std::string Key(const std::string& name) const { return prefix_ + name; }
  std::string JobKey(const std::string& id) const { return Key("job/" + id); }
  std::string EntryKey(const std::string& id) const { return Key("entry/" + id); }
  std::string NodeKey(const std::string& name) const { return Key("node/" + name); }

  static std::string EventName(int64_t sequence);
  std::string EventKey(int64_t sequence) const { return Key(EventName(sequence)); }

  // 0 if the prefix has no state. FAILED_PRECONDITION if it is newer than kSchema.
  absl::StatusOr<int64_t> ReadSchema();
  // Sets `*revision` to the revision of the snapshot.
  absl::StatusOr<EtcdIndex> Load(int64_t* revision);
  // Reads jobs at `revision` (0: the newest) in the order of `selection`, up to the query's limits. Skips
  // jobs that were deleted. UNAVAILABLE also if `revision` was compacted.
  absl::StatusOr<JobPage> Read(const EtcdSelection& selection, const JobQuery& query, int64_t revision = 0);
  // The newest version and its revision. NOT_FOUND for an unknown job.
  absl::StatusOr<v1::Job> Get(const std::string& id, int64_t* revision = nullptr);
  absl::StatusOr<v1::ListNodesResponse> Nodes();
  absl::StatusOr<std::map<std::string, v1::Cordon>> Cordons();
  absl::StatusOr<Events> EventsAfter(int64_t sequence);  // In order of sequence; 0: all.
  absl::StatusOr<StateContent> Content();                // All keys at one revision.

 private:
  // Values by the part of the key after `name`; from the key `first` on, unless it is "".
  using Values = std::map<std::string, std::string>;
  absl::StatusOr<Values> Below(const std::string& name, int64_t* revision, const std::string& first = "");
  // One attempt at revision `of` (0: the newest), `keys_per_page` keys per request. OUT_OF_RANGE: the
  // revision was compacted between two pages.
  absl::StatusOr<Values> BelowOnce(const std::string& name, int64_t* revision, const std::string& first,
                                   int64_t of, int64_t keys_per_page);
  absl::StatusOr<StateContent> ContentOnce();
  absl::StatusOr<std::string> Value(const std::string& name, int64_t* revision);

  EtcdClient* const etcd_;
  const std::string prefix_;
};

}  // namespace fsdpd
