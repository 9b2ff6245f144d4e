#include "coordinator/reconcile/slot_holders.h"

#include "coordinator/testing/reconcile_parts.h"

namespace fsdpd {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class SlotHoldersTest : public ReconcileParts {
 protected:
  void SetUp() override {
    Settle();
    Attach("a", 2, /*measures=*/true);
  }
  std::vector<int> FreeDevices(size_t node = 0) { return slots_.Slots().at(node).free_devices; }
  // The holder `job` of slots, for a head with this priority.
  Occupant HolderOf(const std::string& job, int64_t priority) {
    v1::Job head = QueuedJob("head");
    head.mutable_spec()->set_priority(priority);
    for (const Occupant& each : slots_.OccupantsFor(head)) {
      if (each.job == job) return each;
    }
    ADD_FAILURE() << job << " holds no slots";
    return Occupant();
  }
};

TEST_F(SlotHoldersTest, AttemptHoldsItsDevicesUntilItHasStopped) {
  LiveJob* live = Run(QueuedJob("j"), "a");
  EXPECT_THAT(FreeDevices(), ElementsAre(1));
  EXPECT_EQ(slots_.CountFreeSlots().at("a"), 1);
  EXPECT_THAT(slots_.JobsOn("a"), ElementsAre("j"));
  EXPECT_FALSE(slots_.HasNothing("a"));
  Fail(live);
  EXPECT_THAT(FreeDevices(), ElementsAre(0, 1));
  EXPECT_TRUE(slots_.HasNothing("a"));
}

TEST_F(SlotHoldersTest, LeftoverOfUnknownDevicesHoldsTheWholeNode) {
  book_.AddLeftover({"j", 1}, "a", {1000, "ended"}, /*placed=*/true, absl::InfiniteFuture());
  slots_.ReadFullNodes();
  EXPECT_THAT(FreeDevices(), IsEmpty());
  EXPECT_EQ(slots_.CountFreeSlots().count("a"), 0u);
  v1::Job head = QueuedJob("head");
  const std::vector<Occupant> holders = slots_.OccupantsFor(head);
  ASSERT_FALSE(holders.empty());
  EXPECT_TRUE(holders.back().leaves);
  EXPECT_THAT(holders.back().devices.at("a"), ElementsAre(0, 1));
}

TEST_F(SlotHoldersTest, PreflightHoldsTheNodeAndItsJobTheReservedSlots) {
  LiveJob* live = Submit(QueuedJob("j"));
  ASSERT_TRUE(preflights_.Begin(live, On({"a"}), /*backfilled=*/false).ok());
  EXPECT_THAT(FreeDevices(), IsEmpty());
  EXPECT_TRUE(slots_.Slots()[0].measured);
  EXPECT_THAT(slots_.JobsOn("a"), ElementsAre("j"));
  preflights_.Delete("a");
  EXPECT_THAT(FreeDevices(), ElementsAre(1));
  EXPECT_FALSE(slots_.HasNothing("a"));
}

TEST_F(SlotHoldersTest, DisconnectedNodeHasNoFreeSlotsAndALostOneIsAbsent) {
  nodes_.Detach("a", outboxes_.at("a")->stream_generation());
  presence_.Read();
  EXPECT_THAT(FreeDevices(), IsEmpty());
  EXPECT_TRUE(slots_.Slots()[0].disconnected);
  Lose("a");
  EXPECT_THAT(slots_.Slots(), IsEmpty());
}

TEST_F(SlotHoldersTest, OnlyPreemptibleJobsOfLowerPriorityMayLeave) {
  v1::Job job = QueuedJob("j");
  job.set_preemptible(true);
  LiveJob* live = Run(job, "a");
  EXPECT_TRUE(HolderOf("j", 1).may_leave);
  EXPECT_FALSE(HolderOf("j", 0).may_leave);
  live->job.mutable_failed_checkpoint()->set_step(7);
  EXPECT_FALSE(HolderOf("j", 1).may_leave) << "it cannot save";
  live->job.clear_failed_checkpoint();
  live->job.set_preemptible(false);
  EXPECT_FALSE(HolderOf("j", 1).may_leave);
}

// The job that reserved the slots must not wait for the disk of the backfilled job.
TEST_F(SlotHoldersTest, BackfilledJobLeavesForJobsBeforeItEvenWithoutASave) {
  v1::Job head = QueuedJob("first");
  LiveJob* live = Submit(QueuedJob("j"));
  ASSERT_TRUE(book_.Launch(live, On({"a"}), /*backfilled=*/true).ok());
  live->job.mutable_failed_checkpoint()->set_step(7);
  EXPECT_TRUE(slots_.OccupantsFor(head).at(0).may_leave);
  EXPECT_FALSE(slots_.OccupantsFor(QueuedJob("later")).at(0).may_leave);
}

}  // namespace
}  // namespace fsdpd
