#include "coordinator/attempt/attempt_hosts.h"

#include <gtest/gtest.h>

namespace fsdpd {
namespace {

using FilterResult = AttemptHosts::FilterResult;

v1::Job PlacedOn(const std::vector<std::string>& nodes, int attempt) {
  v1::Job job;
  job.set_id("j");
  job.set_attempt(attempt);
  for (const std::string& node : nodes) {
    v1::Job::Placement* placement = job.add_placements();
    placement->set_node(node);
    placement->set_first_rank(2 * (job.placements_size() - 1));
    placement->set_ranks(2);
  }
  return job;
}

v1::AgentMessage OfRank(int rank, int attempt = 1) {
  v1::AgentMessage message;
  message.mutable_rank()->set_job_id("j");
  message.mutable_rank()->set_attempt(attempt);
  message.mutable_rank()->set_rank(rank);
  message.mutable_rank()->mutable_exit();
  return message;
}

v1::AgentMessage OfKey() {
  v1::AgentMessage message;
  message.mutable_rendezvous_set()->set_job_id("j");
  message.mutable_rendezvous_set()->set_attempt(1);
  return message;
}

v1::AgentMessage OfEnd() {
  v1::AgentMessage message;
  message.mutable_stopped()->set_job_id("j");
  message.mutable_stopped()->set_attempt(1);
  return message;
}

class AttemptHostsTest : public ::testing::Test {
 protected:
  AttemptHostsTest() { hosts_.Open(AttemptFacts(PlacedOn({"a", "b"}, 1), /*recovered=*/false)); }
  FilterResult Of(const std::string& node, v1::AgentMessage message) { return hosts_.Filter(node, &message); }

  AttemptHosts hosts_;
};

TEST_F(AttemptHostsTest, AcceptsReportsOnOwnRanks) {
  for (const int rank : {0, 1}) {
    EXPECT_EQ(Of("a", OfRank(rank)), FilterResult::kTaken);
    EXPECT_EQ(Of("b", OfRank(rank)), FilterResult::kRefused);
  }
  EXPECT_EQ(Of("b", OfRank(3)), FilterResult::kTaken);
  for (const int rank : {-1, 2, INT32_MAX, INT32_MIN})
    EXPECT_EQ(Of("a", OfRank(rank)), FilterResult::kRefused);
  EXPECT_EQ(Of("s2", OfRank(0)), FilterResult::kRefused);
}

// The receivers do not check it again: the reconciler, the timeline board, the trace relay.
TEST_F(AttemptHostsTest, RejectsReportsOnRanksOfOtherNodes) {
  std::vector<v1::AgentMessage> reports(9);
  for (v1::AgentMessage& report : reports) report = OfRank(0);
  reports[0].mutable_rank()->mutable_ready();
  reports[1].mutable_rank()->mutable_exit();
  reports[2].mutable_rank()->mutable_step();
  reports[3].mutable_rank()->mutable_saved();
  reports[4].mutable_rank()->mutable_position();
  reports[5].mutable_rank()->mutable_no_progress();
  reports[6].mutable_rank()->mutable_timeline();
  reports[7].mutable_rank()->mutable_launch_acknowledged();
  reports[8].mutable_trace_result()->set_job_id("j");
  reports[8].mutable_trace_result()->set_attempt(1);
  EXPECT_EQ(v1::RankUpdate::descriptor()->oneof_decl(0)->field_count(), 8) << "a new one is checked too";
  for (const v1::AgentMessage& report : reports) {
    EXPECT_EQ(Of("a", report), FilterResult::kTaken) << report.ShortDebugString();
    for (const char* node : {"b", "s2"})
      EXPECT_EQ(Of(node, report), FilterResult::kRefused) << report.ShortDebugString();
  }
}

TEST_F(AttemptHostsTest, RejectsKeysAndStoppedFromOtherNodes) {
  EXPECT_EQ(Of("b", OfKey()), FilterResult::kTaken);
  EXPECT_EQ(Of("s2", OfKey()), FilterResult::kRefused);
  EXPECT_EQ(Of("b", OfEnd()), FilterResult::kTaken);
  EXPECT_EQ(Of("s2", OfEnd()), FilterResult::kRefused);
}

TEST_F(AttemptHostsTest, MessageOfClosedAttemptIsStale) {
  EXPECT_EQ(Of("a", OfRank(0, 2)), FilterResult::kStale);
  hosts_.Close({"j", 1});
  EXPECT_EQ(Of("a", OfRank(0)), FilterResult::kStale);
  EXPECT_EQ(Of("s2", OfKey()), FilterResult::kStale);
}

TEST_F(AttemptHostsTest, AcceptsOnlyStoppedFromClaimedAttempt) {
  hosts_.AddLeftover({"j", 1}, "s2", /*placed=*/false);
  EXPECT_EQ(Of("s2", OfEnd()), FilterResult::kTaken);
  EXPECT_EQ(Of("s2", OfRank(0)), FilterResult::kStale);
  EXPECT_EQ(Of("s2", OfKey()), FilterResult::kStale);
  hosts_.AddLeftover({"j", 1}, "s3", /*placed=*/true);
  EXPECT_EQ(Of("s3", OfKey()), FilterResult::kTaken);
  hosts_.AddLeftover({"j", 1}, "a", /*placed=*/true);
  EXPECT_EQ(Of("a", OfRank(2)), FilterResult::kRefused) << "the placements are known";
}

// The second node to reconnect counted as one with a stolen key.
TEST_F(AttemptHostsTest, MessageIsStaleIfPlacementsAreUnknown) {
  hosts_.Close({"j", 1});
  hosts_.AddLeftover({"j", 1}, "a", /*placed=*/true);
  EXPECT_EQ(Of("b", OfRank(2)), FilterResult::kStale);
  EXPECT_EQ(Of("b", OfKey()), FilterResult::kStale);
  EXPECT_EQ(Of("b", OfEnd()), FilterResult::kStale);
}

TEST_F(AttemptHostsTest, RemovesComputeTimesOfForeignRanks) {
  v1::AgentMessage message;
  v1::ComputeTimes* times = message.mutable_heartbeat()->add_compute_times();
  times->set_job_id("j");
  times->set_attempt(1);
  times->add_ranks()->set_rank(1);
  times->add_ranks()->set_rank(2);
  EXPECT_EQ(hosts_.Filter("b", &message), FilterResult::kRefused);
  ASSERT_EQ(times->ranks_size(), 1);
  EXPECT_EQ(times->ranks(0).rank(), 2);
  EXPECT_EQ(hosts_.Filter("b", &message), FilterResult::kTaken);
}

TEST_F(AttemptHostsTest, AcceptsAttemptsOnlyFromPlacedNodes) {
  v1::Job job = PlacedOn({"a", "b"}, 3);
  KeepEarlierHosts(3, &job);
  job.mutable_placements()->erase(job.placements().begin());  // Attempt 5 is on b only.
  job.set_attempt(5);
  for (const int newest : {0, 9}) {
    EXPECT_EQ(HostingOf(job, "b", 5, newest), Hosting::kPlaced);
    EXPECT_EQ(HostingOf(job, "b", 3, newest), Hosting::kPlaced);
    EXPECT_EQ(HostingOf(job, "a", 3, newest), Hosting::kPlaced);
    EXPECT_EQ(HostingOf(job, "a", 5, newest), Hosting::kNone);
    for (const int attempt : {1, 3, 5, 6}) EXPECT_EQ(HostingOf(job, "s2", attempt, newest), Hosting::kNone);
  }
  EXPECT_EQ(HostingOf(job, "a", 6, 9), Hosting::kAhead);
  EXPECT_EQ(HostingOf(job, "b", 9, 9), Hosting::kAhead);
  EXPECT_EQ(HostingOf(job, "b", 10, 9), Hosting::kNone);
  EXPECT_EQ(HostingOf(job, "a", 6, 0), Hosting::kNone) << "launched by this coordinator";
}

TEST_F(AttemptHostsTest, RetainsNewestAttemptPerNodeAndNewestNodes) {
  v1::Job job = PlacedOn({"a", "b"}, 1);
  KeepEarlierHosts(1, &job);
  KeepEarlierHosts(2, &job);
  ASSERT_EQ(job.earlier_hosts_size(), 2);
  EXPECT_EQ(job.earlier_hosts(0).attempt(), 2);
  for (int attempt = 3; attempt < 3 + kMaxEarlierHosts; ++attempt) {
    job.mutable_placements()->DeleteSubrange(1, job.placements_size() - 1);
    job.mutable_placements(0)->set_node("n" + std::to_string(attempt));
    KeepEarlierHosts(attempt, &job);
  }
  ASSERT_EQ(job.earlier_hosts_size(), kMaxEarlierHosts);
  EXPECT_EQ(job.earlier_hosts(0).attempt(), 3);
}

}  // namespace
}  // namespace fsdpd
