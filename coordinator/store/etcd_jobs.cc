#include "coordinator/store/etcd_jobs.h"

#include <absl/strings/match.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace fsdpd {
namespace {

namespace etcd = etcdserverpb;

constexpr int64_t kKeysPerPage = 2000;  // About 200 bytes per entry, 2,000 bytes per node.
constexpr size_t kJobsPerRead = 16;     // Up to 1 MB per job; etcd's limit is 128 operations.
constexpr int kTries = 3;

// Repeats `read`, which reads pages at one revision, if etcd compacted that revision before the last page.
template <typename Read>
auto Retried(const Read& read) -> decltype(read()) {
  for (int tries = 1;; ++tries) {
    auto found = read();
    if (!absl::IsOutOfRange(found.status())) return found;
    if (tries == kTries) return absl::UnavailableError(found.status().message());
  }
}

}  // namespace

std::string EndOfPrefix(std::string prefix) {
  ++prefix.back();
  return prefix;
}

std::string RemovalCommand(const std::string& prefix) {
  std::string command = "for name in";
  for (const char* directory : kEtcdDirectories) absl::StrAppend(&command, " ", directory);
  absl::StrAppend(&command, "; do etcdctl del --prefix ", prefix, "$name; done");
  for (const char* name : kEtcdNames) absl::StrAppend(&command, "; etcdctl del ", prefix, name);
  return command;
}

absl::StatusOr<EtcdJobs::Values> EtcdJobs::Below(const std::string& name, int64_t* revision,
                                                 const std::string& first) {
  return Retried([&] { return BelowOnce(name, revision, first, /*of=*/0, kKeysPerPage); });
}

absl::StatusOr<EtcdJobs::Values> EtcdJobs::BelowOnce(const std::string& name, int64_t* revision,
                                                     const std::string& first, int64_t of,
                                                     int64_t keys_per_page) {
  const std::string prefix = Key(name);
  Values values;
  etcd::RangeRequest request;
  request.set_key(first.empty() ? prefix : first);
  request.set_range_end(EndOfPrefix(prefix));
  request.set_limit(keys_per_page);
  request.set_revision(of);
  while (true) {
    FSDPD_ASSIGN_OR_RETURN(const etcd::RangeResponse page, etcd_->Range(request));
    // The first page pins the revision, so that all pages are one snapshot.
    if (request.revision() == 0) request.set_revision(page.header().revision());
    // A server that returns keys outside the range, or the same keys again, is not etcd. Without this check
    // the loop might not end.
    for (const etcd::KeyValue& kv : page.kvs()) {
      if (kv.key() < request.key() || !absl::StartsWith(kv.key(), prefix))
        return absl::DataLossError(absl::StrCat("etcd: got a key outside prefix ", prefix));
      values[kv.key().substr(prefix.size())] = kv.value();
    }
    if (!page.more() || page.kvs().empty()) break;
    request.set_key(page.kvs(page.kvs_size() - 1).key() + '\0');
  }
  if (revision != nullptr) *revision = request.revision();
  return values;
}

absl::StatusOr<std::string> EtcdJobs::Value(const std::string& name, int64_t* revision) {
  etcd::RangeRequest request;
  request.set_key(Key(name));
  FSDPD_ASSIGN_OR_RETURN(const etcd::RangeResponse found, etcd_->Range(request));
  if (revision != nullptr) *revision = found.header().revision();
  if (found.kvs().empty())
    return absl::NotFoundError(absl::StrCat("etcd: key ", request.key(), " not found"));
  return found.kvs(0).value();
}

absl::StatusOr<int64_t> EtcdJobs::ReadSchema() {
  const absl::StatusOr<std::string> value = Value("schema", nullptr);
  if (absl::IsNotFound(value.status())) return 0;
  FSDPD_RETURN_IF_ERROR(value.status());
  int64_t schema = 0;
  if (!absl::SimpleAtoi(*value, &schema))
    return absl::DataLossError(absl::StrCat("etcd: key ", Key("schema"), " is not a number"));
  if (schema == kSchemaOfPartialRestore)
    return absl::FailedPreconditionError(absl::StrCat(
        "etcd: prefix ", prefix_, " has the partial state of a restore that did not finish; remove it (",
        RemovalCommand(prefix_), ") and restore again [STATE_NOT_USABLE]"));
  if (schema > kSchema)
    return absl::FailedPreconditionError(absl::StrCat("etcd: prefix ", prefix_, " has schema ", schema,
                                                      " (want at most ", kSchema,
                                                      "); use the newer fsdpd-coordinator [STATE_TOO_NEW]"));
  return schema;
}

absl::StatusOr<EtcdIndex> EtcdJobs::Load(int64_t* revision) {
  FSDPD_ASSIGN_OR_RETURN(const Values values, Below("entry/", revision));
  EtcdIndex index;
  for (const auto& [id, bytes] : values) {
    FSDPD_ASSIGN_OR_RETURN(const v1::Job entry, ParseJob(bytes));
    index.Set(id, EntryOf(entry));
  }
  return index;
}

absl::StatusOr<JobPage> EtcdJobs::Read(const EtcdSelection& selection, const JobQuery& query,
                                       int64_t revision) {
  const std::vector<JobCursor>& ids = selection.ids;
  JobPage page;
  size_t bytes = 0;
  const auto full = [&] {
    return page.jobs.size() >= static_cast<size_t>(query.limit) || bytes >= query.max_bytes;
  };
  for (size_t begin = 0; begin < ids.size(); begin += kJobsPerRead) {
    page.more = full();
    if (page.more) return page;
    const size_t end = std::min(ids.size(), begin + kJobsPerRead);
    etcd::TxnRequest request;
    for (size_t i = begin; i < end; ++i) {
      etcd::RangeRequest* range = request.add_success()->mutable_request_range();
      range->set_key(JobKey(ids[i].id));
      range->set_revision(revision);
    }
    const absl::StatusOr<etcd::TxnResponse> read = etcd_->ReadTxn(request);
    if (absl::IsOutOfRange(read.status())) return absl::UnavailableError(read.status().message());
    FSDPD_ASSIGN_OR_RETURN(const etcd::TxnResponse answer, read);
    size_t at = begin;
    for (const etcd::ResponseOp& op : answer.responses()) {
      const size_t place = at++;
      if (op.response_range().kvs().empty()) continue;  // Deleted since the index was read.
      const std::string& value = op.response_range().kvs(0).value();
      page.more = full();
      if (page.more) return page;
      FSDPD_ASSIGN_OR_RETURN(v1::Job job, ParseJob(value));
      // The cursor is the entry's position; the job itself may have ended since.
      page.end = ids[place];
      bytes += value.size();
      page.jobs.push_back(std::move(job));
    }
  }
  page.more = selection.truncated;
  if (selection.truncated) page.end = ids.back();
  return page;
}

absl::StatusOr<v1::Job> EtcdJobs::Get(const std::string& id, int64_t* revision) {
  const absl::StatusOr<std::string> bytes = Value("job/" + id, revision);
  if (absl::IsNotFound(bytes.status())) return absl::NotFoundError(absl::StrCat("no job '", id, "'"));
  FSDPD_RETURN_IF_ERROR(bytes.status());
  return ParseJob(*bytes);
}

absl::StatusOr<v1::ListNodesResponse> EtcdJobs::Nodes() {
  v1::ListNodesResponse nodes;
  FSDPD_ASSIGN_OR_RETURN(const Values values, Below("node/", nullptr));
  for (const auto& [name, bytes] : values) {
    if (!nodes.add_nodes()->ParseFromString(bytes))
      return absl::DataLossError(absl::StrCat("state store: stored node ", name, " cannot be read"));
  }
  return nodes;
}

std::string EtcdJobs::EventName(int64_t sequence) {
  return absl::StrCat("event/", absl::Dec(sequence, absl::kZeroPad19));
}

absl::StatusOr<Events> EtcdJobs::EventsAfter(int64_t sequence) {
  FSDPD_ASSIGN_OR_RETURN(const Values values, Below("event/", nullptr, EventKey(sequence + 1)));
  Events events;
  for (const auto& [sequence, bytes] : values) {
    if (!events.emplace_back().ParseFromString(bytes))
      return absl::DataLossError("state store: a stored event cannot be read");
  }
  return events;
}

absl::StatusOr<std::map<std::string, v1::Cordon>> EtcdJobs::Cordons() {
  FSDPD_ASSIGN_OR_RETURN(const Values values, Below("cordon/", nullptr));
  std::map<std::string, v1::Cordon> cordons;
  for (const auto& [node, bytes] : values) {
    if (!cordons[node].ParseFromString(bytes))
      return absl::DataLossError("state store: a stored cordon cannot be read");
  }
  return cordons;
}

absl::StatusOr<StateContent> EtcdJobs::Content() {
  return Retried([&] { return ContentOnce(); });
}

absl::StatusOr<StateContent> EtcdJobs::ContentOnce() {
  StateContent content;
  int64_t revision = 0;
  FSDPD_ASSIGN_OR_RETURN(content.jobs, BelowOnce("job/", &revision, "", 0, kJobsPerRead));
  FSDPD_ASSIGN_OR_RETURN(content.cordons, BelowOnce("cordon/", &revision, "", revision, kKeysPerPage));
  FSDPD_ASSIGN_OR_RETURN(content.nodes, BelowOnce("node/", &revision, "", revision, kKeysPerPage));
  FSDPD_ASSIGN_OR_RETURN(Values events, BelowOnce("event/", &revision, "", revision, kKeysPerPage));
  for (auto& [sequence, bytes] : events) {
    int64_t number = 0;
    if (!absl::SimpleAtoi(sequence, &number))
      return absl::DataLossError(
          absl::StrCat("etcd: key ", Key("event/"), sequence, " does not end in a number"));
    content.events[number] = std::move(bytes);
  }
  FSDPD_ASSIGN_OR_RETURN(const std::string generation, Value("generation", nullptr));
  if (!absl::SimpleAtoi(generation, &content.generation))
    return absl::DataLossError(absl::StrCat("etcd: key ", Key("generation"), " is not a number"));
  return content;
}

}  // namespace fsdpd
