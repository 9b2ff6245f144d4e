#include "coordinator/reconcile/node_records.h"

#include "coordinator/testing/full_disk.h"
#include "coordinator/testing/reconcile_parts.h"

namespace fsdpd {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Not;

class NodeRecordsTest : public ReconcileParts {
 protected:
  std::vector<std::string> StoredNames() {
    std::vector<std::string> names;
    const v1::ListNodesResponse stored = store_->Nodes().value();
    for (const v1::Node& node : stored.nodes()) names.push_back(node.name());
    return names;
  }
  int64_t FirstsDate() { return store_->Nodes().value().nodes(0).last_seen_unix_nanos(); }
};

TEST_F(NodeRecordsTest, StoresChangesAtMostEverySecond) {
  Attach("a");
  records_.Remember();
  EXPECT_THAT(StoredNames(), ElementsAre("a"));
  Attach("b");
  records_.Remember();
  EXPECT_THAT(StoredNames(), ElementsAre("a"));
  records_.RememberSoon();
  records_.Remember();
  EXPECT_THAT(StoredNames(), ElementsAre("a", "b"));
}

TEST_F(NodeRecordsTest, UnchangedNodesAreWrittenOnlyToUpdateTheirDate) {
  Attach("a");
  records_.Remember();
  const int64_t first = FirstsDate();
  Advance(absl::Minutes(10) - absl::Seconds(1));
  records_.Remember();
  EXPECT_EQ(FirstsDate(), first);
  Advance(absl::Seconds(1));
  records_.Remember();
  EXPECT_GT(FirstsDate(), first);
}

TEST_F(NodeRecordsTest, ForgottenNodesLeaveTheStore) {
  Attach("a");
  Attach("b");
  records_.Remember();
  Settle();
  Lose("a");
  ASSERT_TRUE(nodes_.Forget("a"));
  Advance(absl::Seconds(1));
  records_.Remember();
  EXPECT_THAT(StoredNames(), ElementsAre("b"));
}

TEST_F(NodeRecordsTest, FailedWriteIsRetriedWithItsEvent) {
  Attach("a");
  records_.Remember();
  v1::NodePreflight passed;
  passed.set_unix_nanos(absl::ToUnixNanos(clock_.Wall()));
  preflights_.results().Set("a", passed);
  Advance(absl::Seconds(1));
  {
    const FullDisk full;
    records_.Remember();
  }
  EXPECT_THAT(EventsOf("a"), Not(Contains(v1::EVENT_KIND_PREFLIGHT_PASSED)));
  for (int i = 0; i < 2; ++i) {
    Advance(absl::Seconds(1));
    records_.Remember();
  }
  EXPECT_THAT(EventsOf("a"), Contains(v1::EVENT_KIND_PREFLIGHT_PASSED).Times(1));
}

TEST_F(NodeRecordsTest, RevokedCertificateIsOneEvent) {
  Attach("a");
  records_.Remember();
  nodes_.SetRevoked("a", outboxes_.at("a")->stream_generation(), "17");
  for (int i = 0; i < 2; ++i) {
    Advance(absl::Seconds(1));
    records_.Remember(/*all=*/true);
  }
  EXPECT_THAT(EventsOf("a"), Contains(v1::EVENT_KIND_CERTIFICATE_REVOKED).Times(1));
}

TEST_F(NodeRecordsTest, JobsRecordADeletedNodeThatMayHaveTheirRanks) {
  LiveJob* live = Submit(QueuedJob("j"));
  Submit(QueuedJob("k"));
  ASSERT_TRUE(records_.Delete("a", /*is_known=*/true, {"j", "deleted job"}).ok());
  EXPECT_THAT(Stored("j").deleted_hosts(), ElementsAre("a"));
  EXPECT_THAT(live->job.deleted_hosts(), ElementsAre("a"));
  EXPECT_THAT(Stored("k").deleted_hosts(), IsEmpty());
  EXPECT_FALSE(records_.WasDeletedWithout("a", "j"));
  EXPECT_TRUE(records_.WasDeletedWithout("a", "k"));
  records_.ForgetDeletedHost("a");
  EXPECT_THAT(live->job.deleted_hosts(), IsEmpty());
}

TEST_F(NodeRecordsTest, LastDeletionCountsUnlessItWasOnlyOfACordon) {
  Submit(QueuedJob("j"));
  EXPECT_FALSE(records_.WasDeletedWithout("a", "j")) << "never deleted";
  ASSERT_TRUE(records_.Delete("a", /*is_known=*/true, {"j"}).ok());
  ASSERT_TRUE(records_.Delete("a", /*is_known=*/false, {}).ok());
  EXPECT_FALSE(records_.WasDeletedWithout("a", "j")) << "the node had not registered since";
  ASSERT_TRUE(records_.Delete("a", /*is_known=*/true, {}).ok());
  EXPECT_TRUE(records_.WasDeletedWithout("a", "j"));
}

TEST_F(NodeRecordsTest, JobKeepsTheNewestDeletedNodes) {
  LiveJob* live = Submit(QueuedJob("j"));
  for (int i = 0; i <= 64; ++i)
    ASSERT_TRUE(records_.Delete(absl::StrCat("n", i), /*is_known=*/true, {"j"}).ok());
  ASSERT_EQ(live->job.deleted_hosts_size(), 64);
  EXPECT_EQ(live->job.deleted_hosts(0), "n1");
  EXPECT_EQ(live->job.deleted_hosts(63), "n64");
}

TEST_F(NodeRecordsTest, DeletionThatCannotBeStoredChangesNothing) {
  LiveJob* live = Submit(QueuedJob("j"));
  const FullDisk full;
  EXPECT_FALSE(records_.Delete("a", /*is_known=*/true, {"j"}).ok());
  EXPECT_THAT(live->job.deleted_hosts(), IsEmpty());
}

}  // namespace
}  // namespace fsdpd
