#include "base/rank/flight_recorder.h"

#include <absl/strings/ascii.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <thread>

#include "base/seeds.h"

namespace fsdpd {
namespace {

const std::vector<FlightLane> kLanes = {{"compute"}, {"gather", true}, {"reduce", true}};
const std::vector<std::string> kTraining = {"Gather embedding", "Forward embedding mb 0",
                                            "Backward embedding mb 0", "Reduce embedding mb 0"};
const std::vector<std::string> kEvaluation = {"Gather embedding", "Forward embedding mb 0", "Loss"};

class FlightRecorderTest : public testing::Test {
 protected:
  void SetUp() override {
    const absl::StatusOr<int> fd = MakeFlightRecorder();
    ASSERT_TRUE(fd.ok()) << fd.status();
    fd_ = *fd;
    page_ = *FlightRecorder::Map(fd_);
  }
  void TearDown() override { close(fd_); }

  void Put(int lane, int64_t step, int64_t instruction, bool inside, bool evaluation = false) {
    page_->word(lane)->store(PackProgress({step, instruction, evaluation, inside}));
  }
  std::string Where() {
    const absl::StatusOr<std::string> where = DescribeLanePositions(fd_);
    return where.ok() ? *where : where.status().ToString();
  }
  off_t PageBytes() {
    struct stat facts = {};
    EXPECT_EQ(fstat(fd_, &facts), 0);
    return facts.st_size;
  }

  int fd_ = -1;
  std::unique_ptr<FlightRecorder> page_;
};

TEST_F(FlightRecorderTest, WordHoldsTheLargestJobAndIsNotZero) {
  for (const int64_t step : {int64_t{0}, int64_t{1}, int64_t{1000000000}, (int64_t{1} << 31) - 1}) {
    for (const int64_t instruction : {int64_t{0}, int64_t{1}, (int64_t{1} << 29) - 1}) {
      for (const int flags : {0, 1, 2, 3}) {
        const uint64_t word = PackProgress({step, instruction, (flags & 1) != 0, (flags & 2) != 0});
        EXPECT_NE(word, 0u);
        const LaneProgress back = UnpackProgress(word);
        EXPECT_EQ(back.step, step);
        EXPECT_EQ(back.instruction, instruction);
        EXPECT_EQ(back.evaluation, (flags & 1) != 0);
        EXPECT_EQ(back.inside, (flags & 2) != 0);
      }
    }
  }
}

TEST_F(FlightRecorderTest, ShowsFirstLaneAndLanesInsideInstructions) {
  page_->Describe(kLanes, kTraining, kEvaluation);
  EXPECT_EQ(Where(), "");
  Put(1, 1, 0, /*inside=*/false);
  EXPECT_EQ(Where(), "step 1: gather after Gather embedding");
  Put(0, 12, 1, /*inside=*/true);
  EXPECT_EQ(Where(), "step 12: compute in Forward embedding mb 0");
  Put(0, 12, 2, /*inside=*/false);
  Put(2, 12, 3, /*inside=*/true);
  EXPECT_EQ(Where(), "step 12: compute after Backward embedding mb 0, reduce in Reduce embedding mb 0");
  Put(1, 13, 0, /*inside=*/true);
  EXPECT_EQ(Where(),
            "step 12: compute after Backward embedding mb 0; step 13: gather in Gather embedding; step 12: "
            "reduce in Reduce embedding mb 0");
}

TEST_F(FlightRecorderTest, DistinguishesEvaluationsFromSteps) {
  page_->Describe(kLanes, kTraining, kEvaluation);
  Put(0, 12, 1, /*inside=*/false, /*evaluation=*/true);
  Put(2, 12, 2, /*inside=*/true, /*evaluation=*/true);
  EXPECT_EQ(Where(), "evaluation after step 12: compute after Forward embedding mb 0, reduce in Loss");
}

TEST_F(FlightRecorderTest, ShowsThePhaseBeforeDescribe) {
  EXPECT_EQ(ReadFlight(fd_)->phase, FlightPhase::kStarting);
  {
    const PhaseScope training(page_.get(), FlightPhase::kTraining);
    {
      const PhaseScope saving(page_.get(), FlightPhase::kSaving);
      EXPECT_EQ(ReadFlight(fd_)->phase, FlightPhase::kSaving);
    }
    EXPECT_EQ(ReadFlight(fd_)->phase, FlightPhase::kTraining);
    EXPECT_TRUE(ReadFlight(fd_)->lanes.empty());
  }
  EXPECT_EQ(ReadFlight(fd_)->phase, FlightPhase::kStarting);
  page_->phase()->store(77);  // Not a valid value.
  EXPECT_EQ(ReadFlight(fd_)->phase, FlightPhase::kStarting);
  const PhaseScope without_a_page(nullptr, FlightPhase::kSaving);
}

TEST_F(FlightRecorderTest, ReadsEachLaneThatHasBegun) {
  page_->Describe(kLanes, kTraining, kEvaluation);
  Put(0, 12, 2, /*inside=*/false);
  Put(2, 12, 3, /*inside=*/true);
  const std::vector<LanePlace> lanes = ReadFlight(fd_)->lanes;
  ASSERT_EQ(lanes.size(), 2u);
  EXPECT_EQ(lanes[0].lane_name, "compute");
  EXPECT_FALSE(lanes[0].exchanges || lanes[0].at.inside);
  EXPECT_EQ(lanes[1].lane, 2);
  EXPECT_TRUE(lanes[1].exchanges && lanes[1].at.inside);
  EXPECT_EQ(lanes[1].instruction, "Reduce embedding mb 0");
  EXPECT_EQ(TextOf(lanes), Where());
}

TEST_F(FlightRecorderTest, TruncatesLongNamesAndNumbersOthers) {
  std::vector<std::string> many(kMaxFlightNames + 10, "Forward " + std::string(500, 'x'));
  page_->Describe(kLanes, many, {"Loss"});
  Put(0, 1, kMaxFlightNames - 1, true);
  EXPECT_EQ(Where(), "step 1: compute in Forward " + std::string(kMaxFlightNameBytes - 9, 'x'));
  Put(0, 1, kMaxFlightNames, true);
  EXPECT_EQ(Where(), "step 1: compute in #16384");
  Put(0, 1, 0, true, /*evaluation=*/true);
  EXPECT_EQ(Where(), "evaluation after step 1: compute in #0");
}

TEST_F(FlightRecorderTest, SurvivesAKilledWriter) {
  page_->Describe(kLanes, kTraining, kEvaluation);
  const pid_t child = fork();
  if (child == 0) {
    page_->word(0)->store(PackProgress({7, 2, false, true}));
    raise(SIGKILL);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(WTERMSIG(status), SIGKILL);
  EXPECT_EQ(Where(), "step 7: compute in Backward embedding mb 0");
}

TEST_F(FlightRecorderTest, MemoryIsAllocatedAndSealed) {
  struct stat facts = {};
  ASSERT_EQ(fstat(fd_, &facts), 0);
  EXPECT_GE(facts.st_blocks * 512, facts.st_size);  // All blocks are allocated.
  EXPECT_NE(ftruncate(fd_, 0), 0);
  EXPECT_NE(ftruncate(fd_, PageBytes() + 1), 0);
  EXPECT_NE(fcntl(fd_, F_ADD_SEALS, F_SEAL_WRITE), 0);
}

TEST_F(FlightRecorderTest, PageWithAHoleIsNotDescribed) {
  page_->Describe(kLanes, kTraining, kEvaluation);
  Put(0, 1, 1, true);
  ASSERT_EQ(fallocate(fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, PageBytes()), 0);
  EXPECT_EQ(DescribeLanePositions(fd_).status(),
            absl::FailedPreconditionError("flight recorder: no progress recorded yet"));
}

TEST_F(FlightRecorderTest, RejectsOtherFiles) {
  EXPECT_EQ(FlightRecorder::Map(-1).status().code(), absl::StatusCode::kFailedPrecondition);
  const int null = open("/dev/null", O_RDWR);
  EXPECT_EQ(FlightRecorder::Map(null).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(DescribeLanePositions(null).status(), absl::InvalidArgumentError("flight recorder: truncated"));
  close(null);
  EXPECT_FALSE(DescribeLanePositions(-1).ok());
  EXPECT_EQ(DescribeLanePositions(fd_).status(),
            absl::FailedPreconditionError("flight recorder: no progress recorded yet"));
}

TEST_F(FlightRecorderTest, RejectsAnotherVersion) {
  page_->Describe(kLanes, kTraining, kEvaluation);
  const uint32_t next = 5;
  ASSERT_EQ(pwrite(fd_, &next, sizeof next, sizeof(uint64_t)), 4);
  EXPECT_EQ(DescribeLanePositions(fd_).status(),
            absl::InvalidArgumentError("flight recorder: unsupported version (got 5, want 4)"));
}

// For any content: an error, or a text that logs and messages accept.
TEST_F(FlightRecorderTest, ReadsGarbageSafely) {
  std::mt19937_64 random(1);
  std::vector<uint64_t> noise(static_cast<size_t>(PageBytes()) / sizeof(uint64_t));
  int read = 0;
  for (int round = 0; round < Seeds(300); ++round) {
    // Names and words are random; the header is valid, invalid in one field, or random too.
    const size_t from = round % 3 == 0 ? 0 : 3;
    for (size_t i = from; i < noise.size(); i += 1 + random() % 64) noise[i] = random();
    const auto bytes = static_cast<size_t>(PageBytes());
    page_->Describe(kLanes, kTraining, kEvaluation);
    const size_t at = from * sizeof(uint64_t);
    ASSERT_EQ(pwrite(fd_, noise.data() + from, bytes - at, static_cast<off_t>(at)),
              static_cast<ssize_t>(bytes - at));
    if (round % 3 == 2) {
      const auto byte = static_cast<uint8_t>(random());
      ASSERT_EQ(pwrite(fd_, &byte, 1, static_cast<off_t>(random() % 24)), 1);
    }
    const absl::StatusOr<std::string> where = DescribeLanePositions(fd_);
    const std::string text = where.ok() ? *where : std::string(where.status().message());
    read += where.ok() ? 1 : 0;
    EXPECT_LE(text.size(), kMaxFlightText);
    EXPECT_TRUE(std::all_of(text.begin(), text.end(), [](unsigned char c) { return absl::ascii_isprint(c); }))
        << text;
  }
  EXPECT_GT(read, 0);  // Not all were rejected by the header checks.
}

TEST_F(FlightRecorderTest, RecordedStepsAreRelativeToTheLaunchedStep) {
  page_->Describe(kLanes, kTraining, kEvaluation);
  const auto recorded = [](int64_t back, int64_t instruction) {
    return PackProgress({back, instruction, /*evaluation=*/false, /*inside=*/true, /*recorded=*/true});
  };
  page_->launched()->store(40);
  page_->word(0)->store(recorded(1, 2));
  page_->word(1)->store(recorded(0, 0));
  EXPECT_EQ(Where(), "step 39: compute in Backward embedding mb 0; step 40: gather in Gather embedding");
  page_->launched()->store(0);  // Not a valid value.
  EXPECT_EQ(Where(), "step 0: compute in Backward embedding mb 0, gather in Gather embedding");
  page_->launched()->store(~uint64_t{0});
  EXPECT_NE(Where().find("compute in"), std::string::npos);
  EXPECT_TRUE(UnpackProgress(recorded(1, 2)).recorded);
}

TEST_F(FlightRecorderTest, WordsAreNotTorn) {
  page_->Describe({{"compute"}}, {}, {});
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    // Every store changes all bits of step and instruction.
    for (bool odd = false; !stop.load(); odd = !odd)
      page_->word(0)->store(odd ? PackProgress({0x7fffffff, 0x1fffffff, false, true})
                                : PackProgress({0, 0, false, true}));
  });
  for (int i = 0; i < 20000; ++i) {
    const std::string where = Where();
    if (where.empty()) continue;
    EXPECT_TRUE(where == "step 0: compute in #0" || where == "step 2147483647: compute in #536870911")
        << where;
  }
  stop = true;
  writer.join();
}

}  // namespace
}  // namespace fsdpd
