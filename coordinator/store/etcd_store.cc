#include "coordinator/store/etcd_store.h"

#include <absl/strings/str_cat.h>
#include <absl/time/clock.h>
#include <absl/time/time.h>
#include <limits.h>

#include <algorithm>
#include <set>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "coordinator/job/directory_owner.h"
#include "coordinator/job/job_machine.h"
#include "coordinator/store/small_record.h"

namespace fsdpd {
namespace {

namespace etcd = etcdserverpb;

constexpr size_t kBatchBytes = 1'000'000;  // Limit of etcd: 1.5 MiB. One job may exceed it.
constexpr size_t kBatchOps = 120;          // Limit of etcd: 128, including the operations of every batch.
constexpr absl::Duration kPause = absl::Milliseconds(50);
// Thinning batches per write. One batch drops about as many events as one write adds.
constexpr int kMostThinning = 3;

// An elastic job that runs with fewer ranks also stores its original resolved spec and memory plan
// (Job.shrunk).
size_t BytesWithHeadroom(const v1::Job& job) {
  const size_t original = job.resolved().ByteSizeLong() + job.memory_plan().ByteSizeLong();
  return job.ByteSizeLong() + (job.spec().restart().has_elastic() ? original : 0);
}

}  // namespace

class EtcdStore::Batch {
 public:
  explicit Batch(const EtcdJobs* keys) : keys_(keys) {}

  void PutJob(const v1::Job& job, const EtcdEntry* stored) {
    EtcdEntry entry = EntryOf(job);
    Put(keys_->JobKey(job.id()), StoredBytes(job));
    if (stored != nullptr && stored->bytes == entry.bytes) return;
    Put(keys_->EntryKey(job.id()), entry.bytes);
    entries[job.id()] = std::move(entry);
  }
  void DeleteJob(const std::string& id) {
    Delete(keys_->JobKey(id));
    Delete(keys_->EntryKey(id));
    deleted.insert(id);
  }
  void Put(const std::string& key, const std::string& value) {
    etcd::PutRequest* put = ops.emplace_back().mutable_request_put();
    put->set_key(key);
    put->set_value(value);
    bytes_ += key.size() + value.size();
  }
  void Delete(const std::string& key) { ops.emplace_back().mutable_request_delete_range()->set_key(key); }

  void PutEvents(Events numbered, int64_t through) {
    for (const v1::Event& event : numbered) Put(keys_->EventKey(event.sequence()), event.SerializeAsString());
    events.insert(events.end(), numbered.begin(), numbered.end());
    forget_through = through;
  }
  // Deletes keys in [first, end).
  void DeleteBelow(const std::string& first, const std::string& end) {
    etcd::DeleteRangeRequest* range = ops.emplace_back().mutable_request_delete_range();
    range->set_key(first);
    range->set_range_end(end);
  }

  bool Fits(size_t bytes, size_t events = 0) const {
    return ops.empty() || (ops.size() + 2 + events <= kBatchOps && bytes_ + bytes <= kBatchBytes);
  }

  std::vector<etcd::RequestOp> ops;
  std::map<std::string, EtcdEntry> entries;  // Entries to set in the index after the write.
  std::set<std::string> deleted;             // Jobs to erase from the index.
  Events events;                             // Events to append to the log.
  int64_t forget_through = 0;                // Sequence up to which the log drops events.

 private:
  const EtcdJobs* keys_;
  size_t bytes_ = 0;
};

EtcdStore::EtcdStore(EtcdClient* etcd, const std::string& prefix, Leadership* leadership, size_t max_events)
    : etcd_(etcd), jobs_(etcd, prefix), leadership_(leadership), log_(max_events) {}

absl::StatusOr<std::unique_ptr<EtcdStore>> EtcdStore::Open(EtcdClient* etcd, const std::string& prefix,
                                                           Leadership* leadership, size_t max_events) {
  std::unique_ptr<EtcdStore> store(new EtcdStore(etcd, prefix, leadership, max_events));
  FSDPD_RETURN_IF_ERROR(store->Prepare());
  return store;
}

absl::Status EtcdStore::Prepare() {
  const WriterLock::Hold hold(&writer_lock_);
  FSDPD_ASSIGN_OR_RETURN(const int64_t schema, jobs_.ReadSchema());
  etcd::RangeRequest request;
  request.set_key(jobs_.Key("written"));
  FSDPD_ASSIGN_OR_RETURN(const etcd::RangeResponse written, etcd_->Range(request));
  last_write_ = written.kvs().empty() ? 0 : written.kvs(0).mod_revision();
  // This write makes etcd refuse all other writers, including requests of the previous leader that are in
  // flight.
  Batch first(&jobs_);
  if (schema < EtcdJobs::kSchema) first.Put(jobs_.Key("schema"), absl::StrCat(EtcdJobs::kSchema));
  FSDPD_RETURN_IF_ERROR(Write(&first, "begin"));
  FSDPD_ASSIGN_OR_RETURN(Events events, jobs_.EventsAfter(0));
  log_.Load(std::move(events), generation());
  int64_t revision = 0;
  EtcdIndex index;
  FSDPD_ASSIGN_OR_RETURN(index, jobs_.Load(&revision));
  MutexLock lock(&mutex_);
  index_ = std::move(index);
  return absl::OkStatus();
}

// The transaction succeeds only if the leadership's key exists (fence) and "written" has the revision of this
// store's last write. If it fails, its response has both keys, which distinguishes three cases:
//   "leader" is missing or newer             the leadership is lost
//   "written" has another number             another program wrote to the state
//   "written" has the number of this write   an earlier attempt was applied, and its answer was lost
absl::Status EtcdStore::Write(Batch* batch, const std::string& doing) {
  const std::string number = absl::StrCat(generation(), ".", ++writes_);
  const std::string written = jobs_.Key("written");
  etcd::TxnRequest request;
  const etcd::Compare fence = leadership_->Fence();
  *request.add_compare() = fence;
  etcd::Compare* last = request.add_compare();
  last->set_target(etcd::Compare::MOD);
  last->set_key(written);
  last->set_mod_revision(last_write_);
  batch->Put(written, number);
  for (etcd::RequestOp& op : batch->ops) *request.add_success() = std::move(op);
  request.add_failure()->mutable_request_range()->set_key(fence.key());
  request.add_failure()->mutable_request_range()->set_key(written);
  for (bool lost_answer = false; leadership_->held(); absl::SleepFor(kPause)) {
    const absl::StatusOr<etcd::TxnResponse> answer = etcd_->TryTxn(request);
    if (absl::IsUnavailable(answer.status())) {
      lost_answer = true;
      continue;
    }
    if (!answer.ok() && !lost_answer) {
      return absl::Status(answer.status().code(),
                          absl::StrCat("state store: ", doing, ": ", answer.status().message()));
    }
    // Refused after an attempt whose answer was lost: it is unknown whether that one was applied.
    if (!answer.ok()) {
      leadership_->Lose(absl::StrCat("the result of a write is unknown: ", answer.status().message()));
      break;
    }
    if (answer->succeeded()) {
      last_write_ = answer->header().revision();
      return absl::OkStatus();
    }
    if (answer->responses_size() < 2) {
      leadership_->Lose("etcd returned an unexpected response");
      break;
    }
    const auto& leader = answer->responses(0).response_range().kvs();
    const auto& found = answer->responses(1).response_range().kvs();
    if (leader.empty() || leader[0].create_revision() != fence.create_revision()) {
      leadership_->Lose("lease expired");
      break;
    }
    if (found.empty() || found[0].value() != number) {
      leadership_->Lose("another program wrote to the state");
      break;
    }
    last_write_ = found[0].mod_revision();  // An earlier attempt was applied.
    return absl::OkStatus();
  }
  return FencedError();
}

absl::Status EtcdStore::WriteAndAdopt(Batch* batch, const std::string& doing) {
  if (batch->ops.empty()) return absl::OkStatus();
  FSDPD_RETURN_IF_ERROR(Write(batch, doing));
  {
    MutexLock lock(&mutex_);
    for (auto& [id, entry] : batch->entries) index_.Set(id, std::move(entry));
    for (const std::string& id : batch->deleted) {
      index_.Erase(id);
      log_.ForgetJob(id);
      too_large_.erase(id);
    }
  }
  if (batch->events.empty()) return absl::OkStatus();
  log_.Append(std::move(batch->events), batch->forget_through);
  ThinEvents();
  return absl::OkStatus();
}

absl::Status EtcdStore::EarlierRefusal(const v1::Job& job) const {
  const auto refused = too_large_.find(job.id());
  const bool same = refused != too_large_.end() && job.ByteSizeLong() >= refused->second.bytes;
  return same && absl::Now() < refused->second.until ? refused->second.why : absl::OkStatus();
}

void EtcdStore::RecordRefusal(const v1::Job& job, const absl::Status& written) {
  if (absl::IsOutOfRange(written))
    too_large_[job.id()] = {job.ByteSizeLong(), absl::Now() + kTooLargePause, written};
}

// A failure here does not affect the write; the next write tries again.
void EtcdStore::ThinEvents() {
  for (int batches = 0; batches < kMostThinning; ++batches) {
    const ThinnedEvents thinned = log_.Thin(kBatchOps - 2);
    if (thinned.changes() == 0) return;
    Batch batch(&jobs_);
    if (thinned.through > 0) batch.DeleteBelow(jobs_.EventKey(0), jobs_.EventKey(thinned.through + 1));
    for (const int64_t sequence : thinned.gone) batch.Delete(jobs_.EventKey(sequence));
    for (const v1::Event& gap : thinned.gaps)
      batch.Put(jobs_.EventKey(gap.sequence()), gap.SerializeAsString());
    if (!Write(&batch, "delete old events").ok()) return;
    log_.Forget(thinned);
  }
}

void EtcdStore::AddEvents(const std::vector<const v1::Job*>& jobs, const Events& news, Batch* batch) const {
  Events events = log_.Number(jobs, news);
  if (events.empty()) return;
  const int64_t through = log_.ForgetThrough(events, absl::FromUnixNanos(events.back().unix_nanos()));
  if (through > 0) batch->DeleteBelow(jobs_.EventKey(0), jobs_.EventKey(through + 1));
  batch->PutEvents(std::move(events), through);
}

absl::StatusOr<std::optional<v1::Job>> EtcdStore::FindRequest(const std::string& request_id,
                                                              const v1::JobSpec& spec) {
  std::string id;
  {
    MutexLock lock(&mutex_);
    id = index_.IdOfRequest(request_id);
  }
  if (id.empty()) return std::nullopt;
  absl::StatusOr<v1::Job> stored = Get(id);
  if (absl::IsNotFound(stored.status())) return std::nullopt;  // Deleted meanwhile.
  FSDPD_RETURN_IF_ERROR(stored.status());
  FSDPD_ASSIGN_OR_RETURN(v1::Job same, SameRequest(*std::move(stored), spec));
  return std::optional<v1::Job>(std::move(same));
}

absl::StatusOr<Inserted> EtcdStore::Insert(const v1::Job& job) {
  if (const size_t bytes = BytesWithHeadroom(job); bytes > kMaxJobBytes) {
    return absl::OutOfRangeError(
        absl::StrCat("job record: too large (got ", bytes, " bytes, want at most ", kMaxJobBytes,
                     "; the rest of etcd's 1.5 MiB is headroom for the job's history)"));
  }
  const WriterLock::Hold hold(&writer_lock_);
  bool asked_before = false;
  {
    MutexLock lock(&mutex_);
    asked_before = !index_.IdOfRequest(job.request_id()).empty();
    if (!asked_before && index_.Find(job.id()) != nullptr)
      return absl::AlreadyExistsError(absl::StrCat("job id ", job.id(), " is already in use"));
    if (!asked_before && index_.DirectoryHasAnother(DirectoryOf(job.spec()), job.id()))
      return DirectoryTaken(job);
  }
  if (asked_before) {
    FSDPD_ASSIGN_OR_RETURN(std::optional<v1::Job> stored, FindRequest(job.request_id(), job.spec()));
    if (!stored.has_value()) return absl::DataLossError("state store: an indexed job is missing");
    return Inserted{std::move(*stored), false};
  }
  Batch batch(&jobs_);
  batch.PutJob(job, nullptr);
  AddEvents({&job}, {}, &batch);
  FSDPD_RETURN_IF_ERROR(WriteAndAdopt(&batch, absl::StrCat("insert job ", job.id())));
  return Inserted{WithEventsOf(log_, job), true};
}

absl::Status EtcdStore::Update(const v1::Job& job) {
  const WriterLock::Hold hold(&writer_lock_);
  return UpdateOne(job);
}

// While etcd refuses the whole record, its last refusal has the smallest refused size, so EarlierRefusal()
// skips larger ones.
absl::Status EtcdStore::UpdateOne(const v1::Job& job) {
  const bool known = too_large_.count(job.id()) != 0;
  const absl::Status whole = UpdateRecord(job);
  if (whole.ok()) too_large_.erase(job.id());
  absl::Status written = whole;
  for (const RecordSize size : {RecordSize::kWithoutLogs, RecordSize::kShortTexts}) {
    if (!absl::IsOutOfRange(written)) break;
    written = UpdateRecord(SmallRecord(job, size));
  }
  if (!whole.ok() && written.ok() && !known) {
    LogWarning("stored a job record without its longest texts job=%s bytes=%d error=%s", job.id(),
               job.ByteSizeLong(), whole.message());
  }
  return written;
}

absl::Status EtcdStore::UpdateRecord(const v1::Job& job) {
  FSDPD_RETURN_IF_ERROR(EarlierRefusal(job));
  Batch batch(&jobs_);
  {
    MutexLock lock(&mutex_);
    const EtcdEntry* const stored = index_.Find(job.id());
    if (stored == nullptr) return absl::NotFoundError(absl::StrCat("no job '", job.id(), "'"));
    const bool again = stored->end_nanos > 0 && EndOf(job) == 0;
    if (again && index_.DirectoryHasAnother(DirectoryOf(job.spec()), job.id())) return DirectoryTaken(job);
    batch.PutJob(job, stored);
  }
  AddEvents({&job}, {}, &batch);
  const absl::Status written = WriteAndAdopt(&batch, absl::StrCat("update job ", job.id()));
  RecordRefusal(job, written);
  return written;
}

std::vector<absl::Status> EtcdStore::UpdateAll(const std::vector<const v1::Job*>& jobs) {
  const WriterLock::Hold hold(&writer_lock_);
  std::vector<absl::Status> results(jobs.size());
  Batch batch(&jobs_);
  std::vector<const v1::Job*> in_batch;
  std::vector<size_t> indices;  // Indices of in_batch in `jobs`.
  size_t events = 0;            // Upper bound: some of them may be stored already.
  // If etcd refuses a batch as too large, stores each of its jobs separately.
  const auto write = [&] {
    if (in_batch.empty()) return absl::OkStatus();
    AddEvents(in_batch, {}, &batch);
    absl::Status written = WriteAndAdopt(&batch, absl::StrCat("update ", in_batch.size(), " jobs"));
    const bool one_by_one = absl::IsOutOfRange(written);
    for (const size_t index : indices) {
      if (one_by_one) written = UpdateOne(*jobs[index]);
      results[index] = written;
    }
    batch = Batch(&jobs_);
    in_batch.clear();
    indices.clear();
    events = 0;
    return written;
  };
  for (size_t i = 0; i < jobs.size(); ++i) {
    const v1::Job* job = jobs[i];
    if (!EarlierRefusal(*job).ok()) {
      results[i] = UpdateOne(*job);
      continue;
    }
    const size_t with_it = events + log_.Number({job}, {}).size();
    if (!batch.Fits(job->ByteSizeLong(), with_it + 1)) {
      const absl::Status written = write();
      if (!written.ok() && !absl::IsOutOfRange(written)) {
        std::fill(results.begin() + i, results.end(), written);
        return results;
      }
    }
    MutexLock lock(&mutex_);
    const EtcdEntry* const stored = index_.Find(job->id());
    if (stored == nullptr) {
      results[i] = absl::NotFoundError(absl::StrCat("no job '", job->id(), "'"));
      continue;
    }
    batch.PutJob(*job, stored);
    in_batch.push_back(job);
    indices.push_back(i);
    events = in_batch.size() == 1 ? log_.Number({job}, {}).size() : with_it;
  }
  write().IgnoreError();
  return results;
}

absl::Status EtcdStore::Delete(const std::string& id, const Events& news) {
  const WriterLock::Hold hold(&writer_lock_);
  {
    MutexLock lock(&mutex_);
    if (index_.Find(id) == nullptr) return absl::NotFoundError(absl::StrCat("no job '", id, "'"));
  }
  Batch batch(&jobs_);
  batch.DeleteJob(id);
  AddEvents({}, news, &batch);
  return WriteAndAdopt(&batch, absl::StrCat("delete job ", id));
}

absl::StatusOr<std::vector<std::string>> EtcdStore::ForgetEnded(const Retention& retention, absl::Time now,
                                                                int limit) {
  const WriterLock::Hold hold(&writer_lock_);
  std::vector<std::string> ids;
  {
    MutexLock lock(&mutex_);
    ids = index_.OutsideRetention(retention, now, limit);
  }
  std::vector<std::string> gone;
  while (gone.size() < ids.size()) {
    Batch batch(&jobs_);
    size_t end = gone.size();
    for (; end < ids.size() && batch.Fits(0); ++end) batch.DeleteJob(ids[end]);
    const absl::Status forgotten = WriteAndAdopt(&batch, "delete old jobs");
    // The caller has to know which jobs are deleted, and calls again for the rest.
    if (!forgotten.ok() && gone.empty()) return forgotten;
    if (!forgotten.ok()) break;
    gone.assign(ids.begin(), ids.begin() + end);
  }
  return gone;
}

absl::StatusOr<v1::Job> EtcdStore::Get(const std::string& id) {
  FSDPD_ASSIGN_OR_RETURN(v1::Job job, jobs_.Get(id));
  log_.AddTo(&job);
  return job;
}

absl::StatusOr<JobPage> EtcdStore::List(const JobQuery& query) {
  EtcdSelection selection;
  {
    MutexLock lock(&mutex_);
    selection = index_.IdsFor(query);
  }
  FSDPD_ASSIGN_OR_RETURN(JobPage page, jobs_.Read(selection, query));
  for (v1::Job& job : page.jobs) log_.AddTo(&job);
  return page;
}

absl::StatusOr<std::vector<v1::Job>> EtcdStore::LiveJobs() {
  JobQuery query;
  query.states = LiveJobStates();
  query.ascending = true;
  query.limit = INT_MAX;
  FSDPD_ASSIGN_OR_RETURN(JobPage all, List(query));
  return std::move(all.jobs);
}

absl::Status EtcdStore::SetCordon(const std::string& node, const v1::Cordon& cordon, const Events& news) {
  const WriterLock::Hold hold(&writer_lock_);
  Batch batch(&jobs_);
  batch.Put(jobs_.Key("cordon/" + node), cordon.SerializeAsString());
  AddEvents({}, news, &batch);
  return WriteAndAdopt(&batch, "cordon " + node);
}

absl::Status EtcdStore::RemoveCordon(const std::string& node, const Events& news) {
  const WriterLock::Hold hold(&writer_lock_);
  Batch batch(&jobs_);
  batch.Delete(jobs_.Key("cordon/" + node));
  AddEvents({}, news, &batch);
  return WriteAndAdopt(&batch, "uncordon " + node);
}

absl::StatusOr<std::map<std::string, v1::Cordon>> EtcdStore::Cordons() { return jobs_.Cordons(); }

// A node and its event are in one batch, so that a partial update is consistent.
absl::Status EtcdStore::UpdateNodes(const v1::ListNodesResponse& changed,
                                    const std::vector<std::string>& gone, const Events& news) {
  std::map<std::string, Events> of_node;
  for (const v1::Event& event : news) of_node[event.node()].push_back(event);
  const WriterLock::Hold hold(&writer_lock_);
  Batch batch(&jobs_);
  Events batch_events;
  const auto write = [&] {
    AddEvents({}, std::exchange(batch_events, {}), &batch);
    const absl::Status written = WriteAndAdopt(&batch, "store the nodes");
    batch = Batch(&jobs_);
    return written;
  };
  const auto reserve = [&](const std::string& node, size_t bytes) -> absl::Status {
    const Events& its = of_node[node];
    if (!batch.Fits(bytes, batch_events.size() + its.size() + 1)) FSDPD_RETURN_IF_ERROR(write());
    batch_events.insert(batch_events.end(), its.begin(), its.end());
    return absl::OkStatus();
  };
  for (const v1::Node& node : changed.nodes()) {
    FSDPD_RETURN_IF_ERROR(reserve(node.name(), node.ByteSizeLong()));
    batch.Put(jobs_.NodeKey(node.name()), node.SerializeAsString());
  }
  for (const std::string& name : gone) {
    FSDPD_RETURN_IF_ERROR(reserve(name, 0));
    batch.Delete(jobs_.NodeKey(name));
  }
  return write();
}

absl::StatusOr<v1::ListNodesResponse> EtcdStore::Nodes() { return jobs_.Nodes(); }

}  // namespace fsdpd
