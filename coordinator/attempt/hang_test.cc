#include "coordinator/attempt/hang.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace fsdpd {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Instructions of a program, in its order: 10 gather, 11 forward, 12 reduce.
class HangTest : public testing::Test {
 protected:
  explicit HangTest(int ranks = 4) {
    for (int rank = 0; rank < ranks; ++rank) {
      StalledRank each;
      each.rank = rank;
      each.no_progress.set_no_progress_ms(31000 + rank);
      each.no_progress.set_phase(v1::RANK_PHASE_TRAINING);
      each.no_progress.set_process(v1::PROCESS_STATE_LIVE);
      each.no_progress.set_evidence("/var/lib/fsdpd/rank-" + std::to_string(rank) + ".hang.txt");
      ranks_.push_back(each);
    }
  }
  void Put(int rank, const std::string& lane, int64_t step, int64_t instruction, bool inside,
           bool evaluation = false) {
    v1::LanePosition* stand = ranks_[rank].no_progress.add_lanes();
    stand->set_lane(lane);
    stand->set_exchanges(lane != "compute");
    stand->set_step(step);
    stand->set_evaluation(evaluation);
    stand->set_instruction(instruction);
    stand->set_running(inside);
    stand->set_name(lane + " #" + std::to_string(instruction));
    std::string* where = ranks_[rank].no_progress.mutable_position();
    *where += (where->empty() ? "step " + std::to_string(step) + ": " : ", ") + lane +
              (inside ? " in #" : " after #") + std::to_string(instruction);
  }
  // All ranks but `except` are in the gather of step 22.
  void OthersGather(int except) {
    for (int rank = 0; rank < static_cast<int>(ranks_.size()); ++rank) {
      if (rank == except) continue;
      Put(rank, "compute", 22, 9, /*inside=*/false);
      Put(rank, "gather", 22, 10, /*inside=*/true);
    }
  }

  std::vector<StalledRank> ranks_;
};

TEST_F(HangTest, RankInComputationBlocksCollective) {
  OthersGather(2);
  Put(2, "compute", 22, 9, /*inside=*/true);
  Put(2, "gather", 22, 8, /*inside=*/false);
  const HangCause cause = FindHang(ranks_);
  EXPECT_EQ(cause.rank, 2);
  EXPECT_EQ(cause.hang.kind(), v1::Job::Hang::KIND_BEHIND);
  EXPECT_EQ(cause.hang.evidence(), "/var/lib/fsdpd/rank-2.hang.txt");
  EXPECT_EQ(cause.hang.no_progress_ms(), 31002);
  EXPECT_EQ(cause.text,
            "no progress for 31 s, in step 22: compute in #9, gather after #8; 3 ranks wait for "
            "it, rank 0 in gather #10 of step 22");
  ASSERT_EQ(cause.hang.positions_size(), 2);
  EXPECT_EQ(cause.hang.positions(0).ranks_size(), 3);
}

TEST_F(HangTest, RankStoppedInComputationIsAbsent) {
  OthersGather(1);
  Put(1, "compute", 22, 9, /*inside=*/true);
  ranks_[1].no_progress.set_process(v1::PROCESS_STATE_STOPPED);
  const HangCause cause = FindHang(ranks_);
  EXPECT_EQ(cause.rank, 1);
  EXPECT_EQ(cause.hang.kind(), v1::Job::Hang::KIND_UNRESPONSIVE);
  EXPECT_FALSE(cause.hang.caused_by_node()) << "a user stopped it";
  EXPECT_THAT(cause.text,
              AllOf(HasSubstr("stopped by a signal, in step 22"), HasSubstr("3 ranks wait for it")));
}

TEST_F(HangTest, RankStoppedInsideCollectiveIsTheCause) {
  OthersGather(-1);
  ranks_[3].no_progress.set_process(v1::PROCESS_STATE_STOPPED);
  EXPECT_EQ(FindHang(ranks_).rank, 3);
  EXPECT_EQ(FindHang(ranks_).hang.kind(), v1::Job::Hang::KIND_UNRESPONSIVE);
}

TEST_F(HangTest, RankThatWaitsForDataIsBehind) {
  OthersGather(0);
  Put(0, "compute", 21, 14, /*inside=*/false);
  Put(0, "gather", 21, 13, /*inside=*/false);
  ranks_[0].no_progress.set_phase(v1::RANK_PHASE_READING);
  const HangCause cause = FindHang(ranks_);
  EXPECT_EQ(cause.rank, 0);
  EXPECT_EQ(cause.hang.kind(), v1::Job::Hang::KIND_BEHIND);
  EXPECT_THAT(cause.text, HasSubstr("while it reads its data, in step 21"));
}

TEST_F(HangTest, RankBlockedOnDiskIsBehindAndNamed) {
  OthersGather(0);
  Put(0, "gather", 21, 13, /*inside=*/false);
  ranks_[0].no_progress.set_process(v1::PROCESS_STATE_BLOCKED);
  EXPECT_EQ(FindHang(ranks_).rank, 0);
  EXPECT_EQ(FindHang(ranks_).hang.kind(), v1::Job::Hang::KIND_UNRESPONSIVE);
  EXPECT_TRUE(FindHang(ranks_).hang.caused_by_node());
  EXPECT_THAT(FindHang(ranks_).text, HasSubstr("blocked in the kernel"));
  ranks_[1].no_progress.set_process(v1::PROCESS_STATE_BLOCKED);
  EXPECT_FALSE(FindHang(ranks_).hang.caused_by_node()) << "a disk that they may share";
}

TEST_F(HangTest, SleepInTheKernelDoesNotMakeAWaitACause) {
  OthersGather(2);
  Put(2, "compute", 22, 9, /*inside=*/true);
  ranks_[0].no_progress.set_process(v1::PROCESS_STATE_BLOCKED);
  EXPECT_EQ(FindHang(ranks_).rank, 2);
}

TEST_F(HangTest, NoCauseIfAllAreInTheSameCollective) {
  OthersGather(-1);
  const HangCause cause = FindHang(ranks_);
  EXPECT_EQ(cause.rank, -1);
  EXPECT_EQ(cause.hang.kind(), v1::Job::Hang::KIND_NO_RANK);
  EXPECT_EQ(cause.text,
            "no progress for 31 s; all ranks are blocked at the same place, in step 22: compute after "
            "#9, gather in #10");
  EXPECT_EQ(cause.hang.positions_size(), 1);
}

TEST_F(HangTest, NoCauseIfAllWaitForFileSystemOrStore) {
  for (StalledRank& rank : ranks_) {
    rank.no_progress.set_phase(v1::RANK_PHASE_LOADING);
    rank.no_progress.set_process(v1::PROCESS_STATE_BLOCKED);
  }
  const HangCause cause = FindHang(ranks_);
  EXPECT_EQ(cause.rank, -1);
  EXPECT_THAT(cause.text,
              HasSubstr("at the same place, while it connects to other ranks and loads its state"));
  EXPECT_THAT(cause.hang.positions(0).position(), HasSubstr("in the kernel"));
}

TEST_F(HangTest, NoCauseIfCollectivesStartedInDifferentOrders) {
  for (int rank = 0; rank < 4; ++rank) {
    const bool gathers = rank < 2;
    Put(rank, "gather", 22, gathers ? 10 : 8, /*inside=*/gathers);
    Put(rank, "reduce", 22, gathers ? 7 : 12, /*inside=*/!gathers);
  }
  const HangCause cause = FindHang(ranks_);
  EXPECT_EQ(cause.rank, -1);
  EXPECT_THAT(cause.text, HasSubstr("all ranks wait for each other"));
}

// Two nodes shard, and equal ranks of both reduce over the outer axis: rank 0's peers wait for it, and the
// others for them.
TEST_F(HangTest, FirstRankOfAChainOfWaitsIsTheCause) {
  Put(0, "compute", 22, 11, /*inside=*/true);
  Put(0, "gather", 22, 10, /*inside=*/false);
  Put(0, "outer", 21, 15, /*inside=*/false);
  Put(1, "gather", 22, 12, /*inside=*/true);
  Put(1, "outer", 21, 15, /*inside=*/false);
  for (const int rank : {2, 3}) {
    Put(rank, "gather", 22, 12, /*inside=*/false);
    Put(rank, "outer", 22, 15, /*inside=*/true);
  }
  EXPECT_EQ(FindHang(ranks_).rank, 0);
  EXPECT_THAT(FindHang(ranks_).text, HasSubstr("3 ranks wait for it"));
}

TEST_F(HangTest, RankThatNeverStartedIsWaitedFor) {
  OthersGather(3);
  ranks_[3].no_progress.set_phase(v1::RANK_PHASE_TRAINING);
  EXPECT_EQ(FindHang(ranks_).rank, 3);
}

TEST_F(HangTest, StepAheadIsNotBehindAndEvaluationFollowsItsStep) {
  OthersGather(2);
  Put(2, "compute", 22, 3, /*inside=*/true);
  Put(2, "gather", 22, 1, /*inside=*/false, /*evaluation=*/true);
  EXPECT_EQ(FindHang(ranks_).rank, -1) << "it has passed the position of the others";
}

TEST_F(HangTest, EndedRankThatOthersWaitForIsTheCause) {
  OthersGather(1);
  ranks_[1].ended = true;
  ranks_[1].no_progress.Clear();
  const HangCause cause = FindHang(ranks_);
  EXPECT_EQ(cause.rank, 1);
  EXPECT_EQ(cause.hang.kind(), v1::Job::Hang::KIND_UNRESPONSIVE);
  EXPECT_EQ(cause.hang.no_progress_ms(), 31000);
  EXPECT_THAT(cause.text, HasSubstr("it has ended; 3 ranks wait for it"));
}

TEST_F(HangTest, LastRemainingRankIsItsOwnCause) {
  for (size_t rank = 1; rank < ranks_.size(); ++rank) {
    ranks_[rank].ended = true;
    ranks_[rank].no_progress.Clear();
  }
  EXPECT_EQ(FindHang(ranks_).rank, 0) << "it exports the model";
}

TEST_F(HangTest, ContextParallelRanksWaitWhereTheyCompute) {
  for (const int rank : {0, 1, 2, 3}) Put(rank, "compute", 22, rank == 1 ? 5 : 9, /*inside=*/true);
  for (StalledRank& rank : ranks_) {
    for (v1::LanePosition& lane : *rank.no_progress.mutable_lanes()) lane.set_exchanges(true);
  }
  EXPECT_EQ(FindHang(ranks_).rank, 1);
}

TEST_F(HangTest, OnlyRankOfAJobIsTheCause) {
  ranks_.resize(1);
  Put(0, "compute", 5, 3, /*inside=*/true);
  const HangCause cause = FindHang(ranks_);
  EXPECT_EQ(cause.rank, 0);
  EXPECT_EQ(cause.text, "no progress for 31 s, in step 5: compute in #3");
}

// Two stages of two ranks. Instructions of the second have lower numbers: its program differs.
class StagesHangTest : public HangTest {
 protected:
  StagesHangTest() {
    for (StalledRank& rank : ranks_) rank.stage = rank.rank / 2;
  }
};

TEST_F(StagesHangTest, StageThatWaitsForItsNeighborIsNotBlamed) {
  Put(0, "compute", 22, 40, /*inside=*/true);
  Put(0, "receive", 22, 45, /*inside=*/true);  // One turn ahead.
  Put(1, "compute", 22, 39, /*inside=*/false);
  Put(1, "gather", 22, 41, /*inside=*/true);
  Put(0, "gather", 22, 38, /*inside=*/false);
  for (const int rank : {2, 3}) {
    Put(rank, "compute", 22, 9, /*inside=*/false);
    Put(rank, "receive", 22, 10, /*inside=*/true);
    Put(rank, "gather", 22, 8, /*inside=*/false);
  }
  const HangCause cause = FindHang(ranks_);
  EXPECT_EQ(cause.rank, 0);
  EXPECT_EQ(cause.hang.kind(), v1::Job::Hang::KIND_BEHIND);
  EXPECT_THAT(cause.text, HasSubstr("3 ranks wait for it, rank 1 in gather #41"));
}

TEST_F(StagesHangTest, StageThatCannotSendIsNotBlamed) {
  for (const int rank : {0, 1}) {
    Put(rank, "compute", 22, 40, /*inside=*/false);
    Put(rank, "send", 22, 39, /*inside=*/true);
  }
  ranks_[2].no_progress.set_phase(v1::RANK_PHASE_READING);
  Put(2, "receive", 22, 10, /*inside=*/true);
  Put(3, "compute", 22, 9, /*inside=*/false);
  Put(3, "receive", 22, 10, /*inside=*/true);
  const HangCause cause = FindHang(ranks_);
  EXPECT_EQ(cause.rank, 2);
  EXPECT_THAT(cause.text, HasSubstr("2 ranks wait for it, rank 0 in send #39 of step 22"));
}

TEST_F(StagesHangTest, NoCauseIfAllStagesWait) {
  for (const int rank : {0, 1, 2, 3}) {
    Put(rank, "compute", 22, 9 - rank, /*inside=*/false);
    Put(rank, rank < 2 ? "send" : "receive", 22, 10 + rank / 2, /*inside=*/true);
  }
  EXPECT_EQ(FindHang(ranks_).rank, -1);
}

class LargeHangTest : public HangTest {
 protected:
  LargeHangTest() : HangTest(4096) {}
};

TEST_F(LargeHangTest, FindsOneRankOfThousands) {
  OthersGather(4000);
  Put(4000, "compute", 22, 9, /*inside=*/true);
  const HangCause cause = FindHang(ranks_);
  EXPECT_EQ(cause.rank, 4000);
  EXPECT_THAT(cause.text, HasSubstr("4095 ranks wait for it"));
  EXPECT_EQ(cause.hang.positions_size(), 2);
}

}  // namespace
}  // namespace fsdpd
