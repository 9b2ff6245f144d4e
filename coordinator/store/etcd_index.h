// In-memory index of the jobs in etcd, with ordered views, so that a query for one request, one directory or
// one page does not visit every stored job.
//
// Not thread-safe. Pointers to entries are valid until that entry is replaced or erased.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "coordinator/store/state_store.h"

namespace fsdpd {

struct EtcdEntry {
  v1::JobState state = v1::JOB_STATE_UNSPECIFIED;
  int64_t create_unix_nanos = 0;
  int64_t end_nanos = 0;  // EndOf().
  std::string request_id, directory, project;
  Labels labels;
  std::string bytes;  // The serialized entry, as stored in etcd.
};

EtcdEntry EntryOf(const v1::Job& job);

// Result of a query on the index: ids in the query's order.
struct EtcdSelection {
  std::vector<JobCursor> ids;
  bool truncated = false;  // More jobs match.
};

class EtcdIndex {
 public:
  void Set(const std::string& id, EtcdEntry entry);
  void Erase(const std::string& id);

  const EtcdEntry* Find(const std::string& id) const;  // nullptr if unknown.
  size_t size() const { return entries_.size(); }
  std::string IdOfRequest(const std::string& request_id) const;  // "" if unknown.
  // Returns whether a job other than `id` uses `directory` and has not ended.
  bool DirectoryHasAnother(const std::string& directory, const std::string& id) const;
  // Ended jobs outside `retention`, oldest end first, at most `limit`.
  std::vector<std::string> OutsideRetention(const Retention& retention, absl::Time now, int limit) const;
  // Jobs that match the query, up to its limit.
  EtcdSelection IdsFor(const JobQuery& query) const;

  int64_t visited() const { return visited_; }  // Entries examined by all queries so far.

 private:
  using Position = std::pair<int64_t, std::string>;
  using Order = std::set<Position>;
  const Order& ViewFor(const JobQuery& query) const;
  bool Wants(const JobQuery& query, const std::string& id) const;

  std::map<std::string, EtcdEntry> entries_;
  std::unordered_map<std::string, std::string> id_of_request_;
  std::unordered_map<std::string, Order> by_directory_;  // Ordered by creation.
  Order by_create_, live_by_create_, by_end_;            // The end of live jobs is 0.
  mutable int64_t visited_ = 0;
};

}  // namespace fsdpd
