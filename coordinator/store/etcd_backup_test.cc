// Refusals and consistency of backups in etcd. tests/integration/test_failover.py moves states between
// stores.
#include "coordinator/store/etcd_backup.h"

#include <absl/strings/str_cat.h>
#include <absl/time/clock.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "base/check.h"
#include "base/temp_dir.h"
#include "coordinator/store/etcd_store.h"
#include "coordinator/store/sqlite_store.h"
#include "coordinator/testing/etcd_server.h"

namespace fsdpd {
namespace {

namespace etcd = etcdserverpb;
using ::testing::HasSubstr;

v1::Job MakeJob(const std::string& id) {
  v1::Job job;
  job.set_id(id);
  job.set_state(v1::JOB_STATE_QUEUED);
  job.set_create_unix_nanos(1);
  return job;
}

class EtcdBackupTest : public ::testing::Test {
 protected:
  // Opens the store of a coordinator that leads below `prefix`.
  struct Leader {
    std::unique_ptr<Leadership> leadership;
    std::unique_ptr<EtcdStore> store;
  };
  absl::StatusOr<Leader> Lead(const std::string& prefix) {
    Leadership::Options options;
    options.prefix = prefix;
    options.address = "127.0.0.1:1";
    Leader leader;
    FSDPD_ASSIGN_OR_RETURN(leader.leadership, Leadership::TryTake(client_.get(), options, [] {}));
    FSDPD_ASSIGN_OR_RETURN(leader.store, EtcdStore::Open(client_.get(), prefix, leader.leadership.get()));
    return leader;
  }
  // Returns a backup of a state with these jobs.
  std::string BackupOf(const std::vector<v1::Job>& jobs) {
    const std::string name = absl::StrCat("state", ++files_);
    {
      const auto store = SqliteStore::Open(dir_.File(name));
      EXPECT_TRUE(store.ok());
      for (const v1::Job& job : jobs) EXPECT_TRUE((*store)->Insert(job).ok());
    }
    EXPECT_TRUE(BackUp(dir_.File(name), dir_.File(name + ".backup")).ok());
    return dir_.File(name + ".backup");
  }
  std::vector<std::string> Keys() {
    etcd::RangeRequest request;
    request.set_key("/");
    request.set_range_end("0");
    std::vector<std::string> keys;
    const etcd::RangeResponse found = *client_->Range(request);
    for (const etcd::KeyValue& kv : found.kvs()) keys.push_back(kv.key());
    return keys;
  }

  const TempDir dir_;
  int files_ = 0;
  EtcdServer server_;
  std::unique_ptr<EtcdClient> client_ = *EtcdClient::Make({{server_.address()}, {}}, absl::Now());
};

TEST_F(EtcdBackupTest, BackupIsConsistentDuringWrites) {
  const auto leader = Lead("/a/");
  ASSERT_TRUE(leader.ok()) << leader.status();
  std::atomic<bool> done{false};
  std::atomic<int> stored{0};
  std::thread writer([&] {
    while (!done && leader->store->Insert(MakeJob(absl::StrCat("job-", stored.load()))).ok()) ++stored;
  });
  while (stored < 40) std::this_thread::yield();  // More than one page.
  const int before = stored;
  const auto copied = BackUpEtcd(client_.get(), "/a/", dir_.File("backup"));
  ASSERT_TRUE(copied.ok()) << copied.status();
  EXPECT_GE(copied->jobs, before);
  const int at_end = stored;
  while (stored == at_end) std::this_thread::yield();  // The writer is not blocked.
  done = true;
  writer.join();
}

TEST_F(EtcdBackupTest, RejectsRestoreOverLeaderOrState) {
  const std::string backup = BackupOf({MakeJob("old")});
  {
    auto leader = Lead("/a/");
    ASSERT_TRUE(leader.ok()) << leader.status();
    ASSERT_TRUE(leader->store->Insert(MakeJob("new")).ok());
    const absl::Status leads = RestoreEtcd(backup, client_.get(), "/a/").status();
    EXPECT_TRUE(absl::IsFailedPrecondition(leads));
    EXPECT_THAT(std::string(leads.message()),
                HasSubstr("a coordinator leads at prefix /a/ (address 127.0.0.1:1)"));
    EXPECT_TRUE(leader->store->Insert(MakeJob("newer")).ok()) << "the leadership continues";
    leader->store.reset();
  }
  const auto before = Keys();
  const absl::Status there = RestoreEtcd(backup, client_.get(), "/a/").status();
  EXPECT_TRUE(absl::IsFailedPrecondition(there));
  EXPECT_THAT(std::string(there.message()), HasSubstr("prefix /a/ already has a state"));
  EXPECT_EQ(Keys(), before);
  EXPECT_TRUE(RestoreEtcd(backup, client_.get(), "/b/").ok()) << "another prefix is a separate state";
}

// Regression: the error reported a coordinator that leads at "a-restore", which a user cannot stop.
TEST_F(EtcdBackupTest, ReportsKilledRestoreAsRestore) {
  const std::string backup = BackupOf({MakeJob("old")});
  Leadership::Options options;
  options.prefix = "/a/";
  options.address = kRestoreLeads;
  const auto ended = Leadership::TryTake(client_.get(), options, [] {});
  ASSERT_TRUE(ended.ok() && *ended != nullptr) << ended.status();
  const absl::Status again = RestoreEtcd(backup, client_.get(), "/a/").status();
  EXPECT_TRUE(absl::IsFailedPrecondition(again));
  EXPECT_THAT(std::string(again.message()), HasSubstr("another restore to prefix /a/"));
}

// Regression: the command in the error also removed the nested state, whose coordinator was leading.
TEST_F(EtcdBackupTest, SeparatesNestedPrefixes) {
  const std::string backup = BackupOf({MakeJob("a")});
  ASSERT_TRUE(RestoreEtcd(backup, client_.get(), "/a/b/").ok());
  const absl::Status outer = RestoreEtcd(backup, client_.get(), "/a/").status();
  EXPECT_TRUE(outer.ok()) << outer;
  const absl::Status there = RestoreEtcd(backup, client_.get(), "/a/").status();
  EXPECT_THAT(
      std::string(there.message()),
      HasSubstr("(for name in cordon/ entry/ event/ job/ node/; do etcdctl del --prefix /a/$name; done; "
                "etcdctl del /a/schema; etcdctl del /a/written)"));
}

TEST_F(EtcdBackupTest, ReportsMissingSource) {
  EXPECT_TRUE(absl::IsNotFound(BackUpEtcd(client_.get(), "/a/", dir_.File("backup")).status()));
  EXPECT_TRUE(absl::IsNotFound(RestoreEtcd(dir_.File("none"), client_.get(), "/a/").status()));
  EXPECT_TRUE(Keys().empty()) << "a failed call writes nothing";
}

TEST_F(EtcdBackupTest, RemovesKeysOfFailedRestore) {
  v1::Job large = MakeJob("m-large");
  large.mutable_spec()->set_name(std::string(1'700'000, 'x'));
  const absl::Status refused =
      RestoreEtcd(BackupOf({MakeJob("a"), large, MakeJob("z")}), client_.get(), "/a/").status();
  EXPECT_TRUE(absl::IsOutOfRange(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("m-large"));
  EXPECT_EQ(Keys(), std::vector<std::string>{"/a/generation"});
  EXPECT_TRUE(RestoreEtcd(BackupOf({MakeJob("a")}), client_.get(), "/a/").ok())
      << "the failed restore left no state";
}

TEST_F(EtcdBackupTest, RejectsPartialState) {
  etcd::TxnRequest request;
  etcd::PutRequest* put = request.add_success()->mutable_request_put();
  put->set_key("/a/schema");
  put->set_value(absl::StrCat(EtcdJobs::kSchemaOfPartialRestore));
  ASSERT_TRUE(client_->TryTxn(request).ok());
  const absl::Status leads = Lead("/a/").status();
  EXPECT_TRUE(absl::IsFailedPrecondition(leads)) << leads;
  EXPECT_THAT(std::string(leads.message()), HasSubstr("a restore that did not finish"));
  EXPECT_TRUE(absl::IsFailedPrecondition(BackUpEtcd(client_.get(), "/a/", dir_.File("backup")).status()));
  EXPECT_TRUE(absl::IsFailedPrecondition(RestoreEtcd(BackupOf({}), client_.get(), "/a/").status()));
}

}  // namespace
}  // namespace fsdpd
