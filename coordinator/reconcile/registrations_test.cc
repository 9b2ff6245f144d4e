#include "coordinator/reconcile/registrations.h"

#include "coordinator/testing/reconcile_parts.h"

namespace fsdpd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class RegistrationsTest : public ReconcileParts {
 protected:
  void SetUp() override {
    Settle();
    Attach("a");
    Attach("b");
  }
  // The agent registers again, with rank 0 of these attempts.
  void Register(const std::string& node, const std::vector<AttemptRef>& hosted) {
    v1::Register info = presence_.Find(node)->info;
    for (const AttemptRef& ref : hosted) {
      v1::HostedAttempt* attempt = info.add_hosted();
      attempt->set_job_id(ref.job);
      attempt->set_attempt(ref.attempt);
      attempt->add_ranks(0);
    }
    registrations_.OnAttached(info, outboxes_.at(node)->stream_generation());
  }

  DrainRunner drains_{{&table_, &presence_, &book_, &slots_, &cordons_, &clock_}};
  Registrations registrations_{
      {&table_, &presence_, &book_, &health_, &preflights_, &records_, &drains_, store_.get(), &meters_}};
};

TEST_F(RegistrationsTest, PlacedAttemptContinues) {
  LiveJob* live = Run(QueuedJob("j"), "a");
  Register("a", {{"j", 1}});
  EXPECT_THAT(StopsTo("a"), IsEmpty());
  EXPECT_TRUE(book_.Find(live->job)->parts[0].hosted);
}

TEST_F(RegistrationsTest, RanksOfAnUnknownJobSaveAndStop) {
  Register("a", {{"unknown", 1}});
  const std::vector<v1::Stop> stops = StopsTo("a");
  ASSERT_THAT(stops, SizeIs(1));
  EXPECT_TRUE(stops[0].save());
  EXPECT_THAT(stops[0].reason(), HasSubstr("unknown job"));
  EXPECT_THAT(book_.FullNodes(), ElementsAre("a")) << "its slots are not known to be free";
}

TEST_F(RegistrationsTest, RanksOfAnEndedAttemptStop) {
  LiveJob* live = Run(QueuedJob("j"), "a");
  Fail(live);
  Register("a", {{"j", 1}});
  const std::vector<v1::Stop> stops = StopsTo("a");
  ASSERT_THAT(stops, SizeIs(1));
  EXPECT_FALSE(stops[0].save());
  EXPECT_EQ(stops[0].reason(), "the attempt has ended");
  EXPECT_THAT(book_.LeftoversOf("j"), HasSubstr("a")) << "the next attempt waits";
}

// As after a restart from a backup.
TEST_F(RegistrationsTest, NewerAttemptSavesBeforeTheJobContinues) {
  LiveJob* live = Run(QueuedJob("j"), "a");
  live->newest_elsewhere = 2;
  Register("a", {{"j", 2}});
  EXPECT_EQ(book_.Find(live->job)->newer_attempt, 2);
  EXPECT_EQ(book_.Find(live->job)->newer_on, "a");
  const std::vector<v1::Stop> stops = StopsTo("a");
  ASSERT_THAT(stops, SizeIs(1));
  EXPECT_TRUE(stops[0].save());
}

TEST_F(RegistrationsTest, OtherNodesCannotClaimAJob) {
  LiveJob* live = Run(QueuedJob("j"), "a");
  Register("b", {{"j", 1}});
  EXPECT_EQ(live->job.state(), v1::JOB_STATE_RUNNING);
  const std::vector<v1::Stop> stops = StopsTo("b");
  ASSERT_THAT(stops, SizeIs(1));
  EXPECT_EQ(stops[0].reason(), "the job was not placed on this node");
  EXPECT_TRUE(book_.HasRefusedRanks("b")) << "until they were killed";
}

TEST_F(RegistrationsTest, RejectsInvalidIdsAndTooManyAttempts) {
  Register("a", {{std::string(65, 'j'), 1}});
  const std::vector<v1::Stop> stops = StopsTo("a");
  ASSERT_THAT(stops, SizeIs(1));
  EXPECT_EQ(stops[0].reason(), "invalid job id");
  std::vector<AttemptRef> many;
  for (int i = 0; i < 100; ++i) many.push_back({absl::StrCat("unknown-", i), 1});
  Register("a", many);
  int refused = 0;
  for (const v1::Stop& stop : StopsTo("a"))
    refused += stop.reason() == "the agent reports more attempts than it can host";
  EXPECT_GT(refused, 0);
  EXPECT_LT(refused, 100);
}

}  // namespace
}  // namespace fsdpd
