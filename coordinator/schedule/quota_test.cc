#include "coordinator/schedule/quota.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "base/temp_dir.h"

namespace fsdpd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

v1::Job JobOf(const std::string& project, const std::string& id) {
  v1::Job job;
  job.set_id(id);
  job.set_project(project);
  return job;
}

TEST(Quota, ParsesOneLinePerProject) {
  EXPECT_EQ(ParseQuotas("# ours\nvision 16\n\n nlp\t0 \n").value(),
            (RanksByProject{{"vision", 16}, {"nlp", 0}}));
  const auto fault = [](const char* text) { return std::string(ParseQuotas(text).status().message()); };
  EXPECT_EQ(fault("a 1\nb"), "line 2: invalid line (got 1 words, want PROJECT RANKS)");
  EXPECT_THAT(fault("a x"), HasSubstr("line 1: invalid number of ranks"));
  EXPECT_THAT(fault("a -1"), HasSubstr("invalid number of ranks"));
  EXPECT_EQ(fault("a 1\na 2"), "line 2: duplicate project a");
  EXPECT_THAT(fault("a/b 1"), HasSubstr("line 1: "));
}

TEST(Quota, InvalidChangeKeepsPreviousQuotas) {
  const TempDir dir;
  std::ofstream(dir.File("q")) << "a 1\n";
  auto file = QuotaFile::Open(dir.File("q"), Clock::Real());
  ASSERT_TRUE(file.ok()) << file.status();
  std::ofstream(dir.File("q")) << "a one\n";
  EXPECT_EQ((*file)->Read(), (RanksByProject{{"a", 1}}));
  std::ofstream(dir.File("q")) << "a 22\n";
  EXPECT_EQ((*file)->Read(), (RanksByProject{{"a", 22}}));
  std::ofstream(dir.File("q")) << "x\n";
  EXPECT_THAT(std::string(QuotaFile::Open(dir.File("q"), Clock::Real()).status().message()),
              HasSubstr(dir.File("q") + ": line 1: invalid line (got 1 words"));
}

TEST(Quota, LimitsOnlyItsProject) {
  RemainingQuotas room({{"a", 4}});
  room.Take("a", 3);
  v1::Job::Waiting waiting;
  EXPECT_EQ(room.WhyNot(JobOf("a", "j-1"), 1, &waiting), "");
  EXPECT_EQ(room.WhyNot(JobOf("b", "j-2"), 100, &waiting), "") << "without a line";
  EXPECT_EQ(room.WhyNot(JobOf("", "j-3"), 100, &waiting), "");
  EXPECT_EQ(waiting.code(), v1::Job::Waiting::CODE_UNSPECIFIED);
  EXPECT_EQ(room.WhyNot(JobOf("a", "j-4"), 2, &waiting),
            "needs 2 ranks and project a may have 4 at a time; 3 are in use");
  EXPECT_EQ(waiting.code(), v1::Job::Waiting::CODE_QUOTA);
}

TEST(Quota, ZeroQuotaSuggestsNoSmallerJob) {
  RemainingQuotas room({{"a", 4}, {"b", 0}});
  v1::Job::Waiting waiting;
  room.WhyNot(JobOf("a", "j-1"), 5, &waiting);
  EXPECT_EQ(waiting.remedy(), "a larger quota of project a, or fewer ranks");
  room.WhyNot(JobOf("b", "j-2"), 5, &waiting);
  EXPECT_EQ(waiting.remedy(), "a larger quota of project b");
}

TEST(Quota, KeepsOrderWithinProjectExceptForImpossibleJob) {
  RemainingQuotas room({{"a", 4}});
  room.Take("a", 3);
  v1::Job::Waiting waiting;
  EXPECT_EQ(room.WhyNot(JobOf("a", "huge"), 5, &waiting),
            "needs 5 ranks and project a may have 4 at a time: it cannot start under this quota");
  EXPECT_EQ(room.WhyNot(JobOf("a", "small"), 1, &waiting), "");
  EXPECT_NE(room.WhyNot(JobOf("a", "large"), 4, &waiting), "");
  waiting.Clear();
  EXPECT_EQ(room.WhyNot(JobOf("a", "small"), 1, &waiting),
            "needs 1 rank and project a may have 4 at a time; waits behind job large of the same "
            "project");
  EXPECT_THAT(waiting.jobs(), ElementsAre("large"));
}

}  // namespace
}  // namespace fsdpd
