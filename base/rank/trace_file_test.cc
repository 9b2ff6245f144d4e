#include "base/rank/trace_file.h"

#include <gtest/gtest.h>

namespace fsdpd {
namespace {

TEST(TraceFile, NameHasStepAndRank) {
  int64_t step = 0;
  int rank = 0;
  EXPECT_EQ(TraceFileName(12, 3), "trace_step_12_rank_3.json");
  EXPECT_TRUE(ParseTraceFileName(TraceFileName(int64_t{1} << 40, 16383), &step, &rank));
  EXPECT_EQ(step, int64_t{1} << 40);
  EXPECT_EQ(rank, 16383);
}

TEST(TraceFile, MemorySnapshotIsNotATrace) {
  int64_t step = 0;
  int rank = 0;
  EXPECT_EQ(MemoryFileName(12, 3), "memory_step_12_rank_3.pickle");
  EXPECT_FALSE(ParseTraceFileName(MemoryFileName(12, 3), &step, &rank));
}

TEST(TraceFile, RejectsOtherNames) {
  int64_t step = 0;
  int rank = 0;
  for (const char* name :
       {"", "rank-0.log", "trace_step_1_rank_2.json.tmp", "trace_step_1_rank_2", "trace_step_x_rank_2.json",
        "trace_step_01_rank_2.json", "trace_step_1_rank_2.json_3"}) {
    EXPECT_FALSE(ParseTraceFileName(name, &step, &rank)) << name;
  }
}

}  // namespace
}  // namespace fsdpd
