#include "coordinator/store/etcd_index.h"

#include <absl/strings/match.h>

#include <algorithm>
#include <iterator>

#include "coordinator/job/directory_owner.h"
#include "coordinator/job/job_machine.h"

namespace fsdpd {

EtcdEntry EntryOf(const v1::Job& job) {
  EtcdEntry entry;
  entry.state = job.state();
  entry.create_unix_nanos = job.create_unix_nanos();
  entry.end_nanos = EndOf(job);
  entry.request_id = job.request_id();
  entry.directory = DirectoryOf(job.spec());
  entry.project = job.project();
  entry.labels = job.labels();
  v1::Job fields;
  fields.set_state(job.state());
  fields.set_create_unix_nanos(job.create_unix_nanos());
  fields.set_end_unix_nanos(job.end_unix_nanos());
  fields.set_request_id(job.request_id());
  fields.set_project(job.project());
  *fields.mutable_labels() = job.labels();
  if (!entry.directory.empty()) fields.mutable_spec()->mutable_checkpoint()->set_dir(entry.directory);
  entry.bytes = fields.SerializeAsString();
  return entry;
}

void EtcdIndex::Set(const std::string& id, EtcdEntry entry) {
  Erase(id);
  const Position created(entry.create_unix_nanos, id);
  by_create_.insert(created);
  if (entry.end_nanos == 0) live_by_create_.insert(created);
  by_end_.emplace(entry.end_nanos, id);
  if (!entry.directory.empty()) by_directory_[entry.directory].insert(created);
  if (!entry.request_id.empty()) id_of_request_[entry.request_id] = id;
  entries_[id] = std::move(entry);
}

void EtcdIndex::Erase(const std::string& id) {
  const auto it = entries_.find(id);
  if (it == entries_.end()) return;
  const EtcdEntry& entry = it->second;
  const Position created(entry.create_unix_nanos, id);
  by_create_.erase(created);
  live_by_create_.erase(created);
  by_end_.erase({entry.end_nanos, id});
  if (const auto directory = by_directory_.find(entry.directory); directory != by_directory_.end()) {
    directory->second.erase(created);
    if (directory->second.empty()) by_directory_.erase(directory);
  }
  if (const auto request = id_of_request_.find(entry.request_id);
      request != id_of_request_.end() && request->second == id)
    id_of_request_.erase(request);
  entries_.erase(it);
}

const EtcdEntry* EtcdIndex::Find(const std::string& id) const {
  const auto it = entries_.find(id);
  return it == entries_.end() ? nullptr : &it->second;
}

std::string EtcdIndex::IdOfRequest(const std::string& request_id) const {
  const auto it = id_of_request_.find(request_id);
  return it == id_of_request_.end() ? "" : it->second;
}

bool EtcdIndex::DirectoryHasAnother(const std::string& directory, const std::string& id) const {
  const auto it = by_directory_.find(directory);
  if (it == by_directory_.end()) return false;
  return std::any_of(it->second.begin(), it->second.end(), [&](const Position& other) {
    ++visited_;
    return other.second != id && entries_.at(other.second).end_nanos == 0;
  });
}

std::vector<std::string> EtcdIndex::OutsideRetention(const Retention& retention, absl::Time now,
                                                     int limit) const {
  const int64_t before =
      retention.time == absl::InfiniteDuration() ? 0 : absl::ToUnixNanos(now - retention.time);
  const auto ended = static_cast<int64_t>(entries_.size() - live_by_create_.size());
  std::vector<std::string> ids;
  for (auto it = by_end_.lower_bound({1, ""}); it != by_end_.end(); ++it) {
    ++visited_;
    const int64_t left = ended - static_cast<int64_t>(ids.size());
    if (static_cast<int>(ids.size()) == limit || (it->first >= before && left <= retention.jobs)) break;
    ids.push_back(it->second);
  }
  return ids;
}

// The smallest view that contains all jobs of the query.
const EtcdIndex::Order& EtcdIndex::ViewFor(const JobQuery& query) const {
  static const Order kNone;
  if (query.by_end) return by_end_;
  if (!query.directory.empty()) {
    const auto directory = by_directory_.find(query.directory);
    return directory == by_directory_.end() ? kNone : directory->second;
  }
  const bool only_live =
      !query.states.empty() && std::none_of(query.states.begin(), query.states.end(), IsEnded);
  return only_live ? live_by_create_ : by_create_;
}

bool EtcdIndex::Wants(const JobQuery& query, const std::string& id) const {
  ++visited_;
  if (!absl::StartsWith(id, query.id_prefix)) return false;
  const EtcdEntry& entry = entries_.at(id);
  const auto& states = query.states;
  if (!states.empty() && std::find(states.begin(), states.end(), entry.state) == states.end()) return false;
  if (!query.directory.empty() && entry.directory != query.directory) return false;
  if (!query.project.empty() && entry.project != query.project) return false;
  return Matches(query.selector, entry.labels);
}

EtcdSelection EtcdIndex::IdsFor(const JobQuery& query) const {
  EtcdSelection selection;
  // Returns false when the page is full and another job matches.
  const auto add = [&](const Position& place) {
    if (!Wants(query, place.second)) return true;
    selection.truncated = selection.ids.size() == static_cast<size_t>(query.limit);
    if (!selection.truncated) selection.ids.push_back({place.first, place.second});
    return !selection.truncated;
  };
  const Order& view = ViewFor(query);
  const Position cursor(query.cursor.unix_nanos, query.cursor.id);
  if (query.ascending) {
    auto it = query.after_cursor ? view.upper_bound(cursor) : view.begin();
    while (it != view.end() && add(*it)) ++it;
  } else {
    auto it = std::make_reverse_iterator(query.after_cursor ? view.lower_bound(cursor) : view.end());
    while (it != view.rend() && add(*it)) ++it;
  }
  return selection;
}

}  // namespace fsdpd
