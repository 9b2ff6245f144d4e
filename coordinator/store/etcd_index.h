// In-memory index of the jobs in etcd: one entry per job, and ordered views of them, so that a question about
// one request, one directory or one page does not visit every stored job.
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
  std::string bytes;  // As it is stored.
};

EtcdEntry EntryOf(const v1::Job& job);

// Jobs in the order of a query.
struct EtcdPlaces {
  std::vector<JobCursor> ids;
  bool cut = false;  // More of them follow.
};

class EtcdIndex {
 public:
  void Set(const std::string& id, EtcdEntry entry);
  void Erase(const std::string& id);

  const EtcdEntry* Find(const std::string& id) const;  // Null: none.
  size_t size() const { return entries_.size(); }
  std::string IdOfRequest(const std::string& request_id) const;  // "": none.
  // Whether a job other than `id` has `directory` and has not ended.
  bool DirectoryHasAnother(const std::string& directory, const std::string& id) const;
  // Those that `retention` does not keep, at most `limit`, the oldest ends first.
  std::vector<std::string> NotKept(const Retention& retention, absl::Time now, int limit) const;
  // The jobs that the query is for, ignoring its filter, as many as one page may look at.
  EtcdPlaces IdsFor(const JobQuery& query) const;

  int64_t visited() const { return visited_; }  // Entries that all questions so far have looked at.

 private:
  using Place = std::pair<int64_t, std::string>;
  using Order = std::set<Place>;
  const Order& ViewFor(const JobQuery& query) const;
  bool Wants(const JobQuery& query, const EtcdEntry& entry) const;

  std::map<std::string, EtcdEntry> entries_;
  std::unordered_map<std::string, std::string> id_of_request_;
  std::unordered_map<std::string, Order> by_directory_;  // Those of each directory, by creation.
  Order by_create_, live_by_create_, by_end_;            // Jobs that have not ended have the end 0.
  mutable int64_t visited_ = 0;
};

}  // namespace fsdpd
