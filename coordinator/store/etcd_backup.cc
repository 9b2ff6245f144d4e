#include "coordinator/store/etcd_backup.h"

#include <absl/strings/str_cat.h>
#include <absl/time/clock.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "base/check.h"
#include "coordinator/store/etcd_jobs.h"
#include "coordinator/store/leadership.h"

namespace fsdpd {
namespace {

namespace etcd = etcdserverpb;

constexpr absl::Duration kLease = absl::Seconds(10);
constexpr absl::Duration kPause = absl::Milliseconds(50);
constexpr size_t kBatchBytes = 1'000'000;  // Limit of etcd: 1.5 MiB. One job may exceed it.
constexpr int kBatchOps = 120;             // Limit of etcd: 128.

// Batched writes under a leadership. Retrying after a lost answer is safe, because writing a value twice is
// idempotent.
class Writer {
 public:
  Writer(EtcdClient* etcd, const EtcdJobs* keys, const Leadership* leadership)
      : etcd_(etcd), keys_(keys), leadership_(leadership) {}

  absl::Status Put(const std::string& name, const std::string& value) {
    const std::string key = keys_->Key(name);
    const size_t bytes = key.size() + value.size();
    if (!ops_.empty() && (ops_.size() == kBatchOps || bytes_ + bytes > kBatchBytes))
      FSDPD_RETURN_IF_ERROR(Flush());
    if (ops_.empty()) first_ = name;
    etcd::PutRequest* put = ops_.emplace_back().mutable_request_put();
    put->set_key(key);
    put->set_value(value);
    bytes_ += bytes;
    return absl::OkStatus();
  }

  absl::Status Flush() {
    etcd::TxnRequest request;
    *request.add_compare() = leadership_->Fence();
    for (etcd::RequestOp& op : ops_) *request.add_success() = std::move(op);
    ops_.clear();
    bytes_ = 0;
    for (; leadership_->held(); absl::SleepFor(kPause)) {
      const absl::StatusOr<etcd::TxnResponse> answer = etcd_->TryTxn(request);
      if (absl::IsUnavailable(answer.status())) continue;
      if (!answer.ok())
        return absl::Status(answer.status().code(),
                            absl::StrCat("write ", first_, ": ", answer.status().message()));
      if (answer->succeeded()) return absl::OkStatus();
      break;
    }
    return absl::UnavailableError("etcd: unreachable until the lease expired; the restore is incomplete");
  }

  // Removes everything that a restore writes, except the generation.
  absl::Status RemoveAll() {
    ops_.clear();
    first_ = "nothing";
    for (const char* below : kEtcdDirectories) {
      etcd::DeleteRangeRequest* range = ops_.emplace_back().mutable_request_delete_range();
      range->set_key(keys_->Key(below));
      range->set_range_end(EndOfPrefix(keys_->Key(below)));
    }
    ops_.emplace_back().mutable_request_delete_range()->set_key(keys_->Key("schema"));
    return Flush();
  }

 private:
  EtcdClient* const etcd_;
  const EtcdJobs* const keys_;
  const Leadership* const leadership_;
  std::vector<etcd::RequestOp> ops_;
  std::string first_;  // The first key in ops_.
  size_t bytes_ = 0;
};

// FAILED_PRECONDITION if the prefix has any key, except the leader's two.
absl::Status CheckIsEmpty(EtcdClient* etcd, const std::string& prefix) {
  std::vector<etcd::RangeRequest> requests;
  for (const char* directory : kEtcdDirectories) {
    etcd::RangeRequest& request = requests.emplace_back();
    request.set_key(prefix + directory);
    request.set_range_end(EndOfPrefix(prefix + directory));
    request.set_limit(1);
  }
  for (const char* name : kEtcdNames) requests.emplace_back().set_key(prefix + name);
  for (const etcd::RangeRequest& request : requests) {
    FSDPD_ASSIGN_OR_RETURN(const etcd::RangeResponse found, etcd->Range(request));
    if (found.kvs().empty()) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("etcd: prefix ", prefix, " already has a state (found key ", found.kvs(0).key(),
                     "); restore to another prefix, or remove it (", RemovalCommand(prefix), ")"));
  }
  return absl::OkStatus();
}

absl::Status WriteAll(const StateContent& content, int64_t generation, Writer* writer) {
  // The partial schema is written first and the current one last, so that no coordinator mistakes a partial
  // state for a complete one.
  FSDPD_RETURN_IF_ERROR(writer->Put("schema", absl::StrCat(EtcdJobs::kSchemaOfPartialRestore)));
  FSDPD_RETURN_IF_ERROR(writer->Flush());
  for (const auto& [id, bytes] : content.jobs) {
    FSDPD_ASSIGN_OR_RETURN(const v1::Job job, ParseJob(bytes));
    FSDPD_RETURN_IF_ERROR(writer->Put("job/" + id, bytes));
    FSDPD_RETURN_IF_ERROR(writer->Put("entry/" + id, EntryOf(job).bytes));
  }
  for (const auto& [node, bytes] : content.cordons)
    FSDPD_RETURN_IF_ERROR(writer->Put("cordon/" + node, bytes));
  for (const auto& [name, bytes] : content.nodes) FSDPD_RETURN_IF_ERROR(writer->Put("node/" + name, bytes));
  for (const auto& [sequence, bytes] : content.events)
    FSDPD_RETURN_IF_ERROR(writer->Put(EtcdJobs::EventName(sequence), bytes));
  FSDPD_RETURN_IF_ERROR(writer->Flush());
  // The next leader continues from this generation.
  FSDPD_RETURN_IF_ERROR(writer->Put("generation", absl::StrCat(std::max(content.generation, generation))));
  FSDPD_RETURN_IF_ERROR(writer->Put("schema", absl::StrCat(EtcdJobs::kSchema)));
  return writer->Flush();
}

// A restore that was killed holds its leadership until the lease expires.
absl::Status PrefixHasLeader(const std::string& prefix, const std::string& leader) {
  if (leader == kRestoreLeads) {
    return absl::FailedPreconditionError(
        absl::StrCat("etcd: another restore to prefix ", prefix, " is running, or was killed less than ",
                     absl::FormatDuration(kLease), " ago; wait until it ends, or for this time"));
  }
  return absl::FailedPreconditionError(
      absl::StrCat("etcd: a coordinator leads at prefix ", prefix,
                   leader.empty() ? "" : absl::StrCat(" (address ", leader, ")"),
                   "; stop all coordinators with this --store, or restore to another prefix"));
}

}  // namespace

absl::StatusOr<CopiedState> BackUpEtcd(EtcdClient* etcd, const std::string& prefix, const std::string& to) {
  EtcdJobs jobs(etcd, prefix);
  FSDPD_ASSIGN_OR_RETURN(const int64_t schema, jobs.ReadSchema());
  if (schema == 0) return absl::NotFoundError(absl::StrCat("etcd: prefix ", prefix, " has no state"));
  FSDPD_ASSIGN_OR_RETURN(const StateContent content, jobs.Content());
  return WriteBackup(content, to);
}

absl::StatusOr<CopiedState> RestoreEtcd(const std::string& from, EtcdClient* etcd,
                                        const std::string& prefix) {
  FSDPD_ASSIGN_OR_RETURN(const StateContent content, ReadBackup(from));
  Leadership::Options options;
  options.prefix = prefix;
  options.address = kRestoreLeads;
  options.lease = kLease;
  std::unique_ptr<Leadership> leadership;
  FSDPD_ASSIGN_OR_RETURN(leadership, Leadership::TryTake(etcd, options, [] {}));
  if (leadership == nullptr) {
    FSDPD_ASSIGN_OR_RETURN(const std::string leader, Leadership::Leader(etcd, prefix));
    return PrefixHasLeader(prefix, leader);
  }
  FSDPD_RETURN_IF_ERROR(CheckIsEmpty(etcd, prefix));
  const EtcdJobs keys(etcd, prefix);
  Writer writer(etcd, &keys, leadership.get());
  if (const absl::Status written = WriteAll(content, leadership->generation(), &writer); !written.ok()) {
    writer.RemoveAll().IgnoreError();
    return written;
  }
  CopiedState copied;
  copied.jobs = static_cast<int64_t>(content.jobs.size());
  copied.schema = EtcdJobs::kSchema;
  for (const auto& [id, bytes] : content.jobs) copied.bytes += static_cast<int64_t>(bytes.size());
  return copied;
}

}  // namespace fsdpd
