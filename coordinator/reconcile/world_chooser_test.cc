#include "coordinator/reconcile/world_chooser.h"

#include "coordinator/testing/full_disk.h"
#include "coordinator/testing/reconcile_parts.h"

namespace fsdpd {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

class WorldChooserTest : public ReconcileParts {
 protected:
  void SetUp() override {
    Settle();
    Attach("a");
    Attach("b");
  }
  // Was launched on a and b, and lost b.
  LiveJob* Elastic() {
    v1::Job job = QueuedJob("j", /*ranks=*/1, /*nodes=*/2);
    job.mutable_spec()->mutable_restart()->set_max_attempts(5);
    job.mutable_spec()->mutable_restart()->mutable_elastic()->set_min_ranks(1);
    LiveJob* live = Submit(job);
    EXPECT_TRUE(book_.Launch(live, On({"a", "b"}), /*backfilled=*/false).ok());
    Fail(live);
    Lose("b");
    return live;
  }
  PlaceDecision Choose(LiveJob* live, int* plans) {
    return chooser_.Choose(live, slots_.Slots(), RemainingQuotas(), plans);
  }
  PlaceDecision Choose(LiveJob* live) {
    int plans = 0;
    return Choose(live, &plans);
  }
  Plan MakePlan(const v1::JobSpec& spec) {
    ++plans_;
    Plan plan;
    plan.resolved = WithDefaults(spec, nullptr);
    plan.violations = violations_;
    return plan;
  }

  int plans_ = 0;
  Violations violations_;
  WorldChooser chooser_{&table_, &presence_,
                        [this](const v1::JobSpec& spec, int64_t) { return MakePlan(spec); }};
};

TEST_F(WorldChooserTest, PlacesAllRanks) {
  LiveJob* live = Submit(QueuedJob("j", 1, 2));
  const PlaceDecision decision = Choose(live);
  EXPECT_THAT(decision.placements, SizeIs(2));
}

TEST_F(WorldChooserTest, ShrinksAfterItsWait) {
  LiveJob* live = Elastic();
  PlaceDecision decision = Choose(live);
  EXPECT_FALSE(decision.placed());
  EXPECT_THAT(decision.reason, HasSubstr("continues with fewer ranks after waiting 1m"));
  Advance(absl::Seconds(61));
  decision = Choose(live);
  ASSERT_THAT(decision.placements, SizeIs(1));
  EXPECT_EQ(decision.placements[0].node(), "a");
  EXPECT_TRUE(live->job.has_shrunk());
  EXPECT_EQ(plans_, 1);
}

TEST_F(WorldChooserTest, TakesAllRanksBack) {
  LiveJob* live = Elastic();
  Choose(live);
  Advance(absl::Seconds(61));
  Choose(live);
  ASSERT_TRUE(live->job.has_shrunk());
  Attach("b");
  const PlaceDecision decision = Choose(live);
  EXPECT_THAT(decision.placements, SizeIs(2));
  EXPECT_THAT(decision.reason, HasSubstr("its full world size again"));
  EXPECT_FALSE(live->job.has_shrunk());
}

TEST_F(WorldChooserTest, MakesOnePlanPerTick) {
  LiveJob* live = Elastic();
  Choose(live);
  Advance(absl::Seconds(61));
  int plans = 1;  // Of another job.
  const PlaceDecision decision = Choose(live, &plans);
  EXPECT_FALSE(decision.placed());
  EXPECT_EQ(decision.reason, "") << "it has the next tick";
  EXPECT_EQ(plans_, 0);
}

TEST_F(WorldChooserTest, DoesNotPlanARejectedWorldAgain) {
  LiveJob* live = Elastic();
  Choose(live);
  Advance(absl::Seconds(61));
  violations_.emplace_back().reason = "too many samples";
  EXPECT_THAT(Choose(live).reason, HasSubstr("it cannot continue with fewer ranks either"));
  EXPECT_THAT(Choose(live).reason, HasSubstr("it cannot continue with fewer ranks either"));
  EXPECT_EQ(plans_, 1);
}

TEST_F(WorldChooserTest, EndsAJobThatCannotBeLaunched) {
  LiveJob* live = Submit(QueuedJob("j"));
  {
    const FullDisk full;
    EXPECT_FALSE(chooser_.GiveUp(live, "a rule rejects it").ok());
    EXPECT_EQ(live->job.state(), v1::JOB_STATE_QUEUED);
  }
  ASSERT_TRUE(chooser_.GiveUp(live, "a rule rejects it").ok());
  EXPECT_EQ(Stored("j").state(), v1::JOB_STATE_FAILED);
  EXPECT_EQ(Stored("j").reason(), "cannot be launched: a rule rejects it");
}

TEST(RequestAgain, PrefersTheLastNodesAndAvoidsOne) {
  v1::Job job;
  job.add_placements()->set_node("a");
  EXPECT_EQ(RequestAgain(job).before, std::set<std::string>{"a"});
}

}  // namespace
}  // namespace fsdpd
