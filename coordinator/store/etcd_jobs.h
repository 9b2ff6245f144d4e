// How jobs lie in etcd, below a prefix: "job/ID" has a job whole, "entry/ID" what the questions about many of
// them need (a v1::Job with those fields alone), so that an answer reads entries and the few jobs in it. They
// are written together. "node/NAME" has a node, "cordon/NAME" its cordon. "event/SEQUENCE" has an
// event (event_log.h), with as many digits as all others. "schema" counts the forms of all this.
//
// A coordinator that leads reads entries once, as nobody else writes them; one that stands by reads them for
// each list, all as of one revision.
//
// Errors: those of etcd_client.h, and DATA_LOSS. Thread-safe.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "coordinator/store/etcd_client.h"
#include "coordinator/store/etcd_index.h"
#include "coordinator/store/state_content.h"
#include "coordinator/store/state_store.h"

namespace fsdpd {

// The first key after all that begin with it, which ends in '/'.
std::string EndOfPrefix(std::string prefix);

class EtcdJobs {
 public:
  static constexpr int64_t kSchema = 2;
  // While a restore writes (etcd_backup.h): coordinators of all releases take it for a newer one and do not
  // lead.
  static constexpr int64_t kSchemaOfUnfinished = 1'000'000'000;

  EtcdJobs(EtcdClient* etcd, std::string prefix) : etcd_(etcd), prefix_(std::move(prefix)) {}

  std::string Key(const std::string& name) const { return prefix_ + name; }
  std::string JobKey(const std::string& id) const { return Key("job/" + id); }
  std::string EntryKey(const std::string& id) const { return Key("entry/" + id); }
  std::string NodeKey(const std::string& name) const { return Key("node/" + name); }

  static std::string EventName(int64_t sequence);
  std::string EventKey(int64_t sequence) const { return Key(EventName(sequence)); }

  // 0 where nothing is stored. FAILED_PRECONDITION where it is newer than kSchema.
  absl::StatusOr<int64_t> ReadSchema();
  // As of `*revision`, which is set.
  absl::StatusOr<EtcdIndex> Load(int64_t* revision);
  // Of `revision`; 0: the newest. Those that are there and that the query's filter is for, in the order of
  // `places`, up to its limits. UNAVAILABLE also where etcd has the revision no more.
  absl::StatusOr<JobPage> Read(const EtcdPlaces& places, const JobQuery& query, int64_t revision = 0);
  // The newest, and when: NOT_FOUND.
  absl::StatusOr<v1::Job> Get(const std::string& id, int64_t* revision = nullptr);
  absl::StatusOr<v1::ListNodesResponse> Nodes();
  absl::StatusOr<std::map<std::string, v1::Cordon>> Cordons();
  absl::StatusOr<Events> EventsAfter(int64_t sequence);  // In order; 0: all.
  absl::StatusOr<StateContent> Content();                // All of it, as of one revision.

 private:
  // All whose keys begin so, by what follows; from the key `first` on, where it is not "".
  absl::StatusOr<std::map<std::string, std::string>> Below(const std::string& name, int64_t* revision,
                                                           const std::string& first = "");
  // As of `of`; 0: the newest. So many keys at a time. OUT_OF_RANGE: the revision is gone meanwhile.
  absl::StatusOr<std::map<std::string, std::string>> BelowOnce(const std::string& name, int64_t* revision,
                                                               const std::string& first, int64_t of,
                                                               int64_t keys_per_page);
  absl::StatusOr<StateContent> ContentOnce();
  absl::StatusOr<std::string> Value(const std::string& name, int64_t* revision);

  EtcdClient* const etcd_;
  const std::string prefix_;
};

}  // namespace fsdpd
