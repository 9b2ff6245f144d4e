// Tests of requests for traces and for evidence of a hang.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <vector>

#include "agent/testing/log_keeper_case.h"
#include "base/limits.h"
#include "base/rank/trace_file.h"

namespace fsdpd {
namespace {

using LogKeeperTracesTest = LogKeeperCase;

v1::ReadLogs AskForTraces(int64_t first, int64_t last, int rank = -1) {
  v1::ReadLogs ask = Ask(rank);
  ask.mutable_traces()->set_first(first);
  ask.mutable_traces()->set_last(last);
  return ask;
}

TEST_F(LogKeeperTracesTest, ReadsTracesInOrder) {
  const UniqueFd log = Open(kRank);
  const std::string directory = keeper_.DirectoryOf(kRank.of);
  for (const char* name :
       {"trace_step_9_rank_3.json", "trace_step_10_rank_3.json", "trace_step_10_rank_2.json",
        "trace_step_11_rank_2.json", "trace_step_10_rank_3.json.tmp"})
    std::ofstream(directory + "/" + name) << name << "\nend\n";
  keeper_.Read(AskForTraces(9, 10));
  EXPECT_EQ(reader_.AwaitEnd(),
            "3:trace_step_9_rank_3.json\n3:end\n2:trace_step_10_rank_2.json\n2:end\n"
            "3:trace_step_10_rank_3.json\n3:end\n");
  EXPECT_EQ(reader_.steps(), (std::vector<int64_t>{9, 9, 10, 10, 10, 10}));
}

// The window is used up within the first file, and again within the second.
TEST_F(LogKeeperTracesTest, TraceWaitsForItsReader) {
  const UniqueFd log = Open(kRank);
  const std::string line(1000, 'x');
  for (const int step : {1, 2}) {
    std::ofstream file(keeper_.DirectoryOf(kRank.of) + "/" + TraceFileName(step, 3));
    for (int i = 0; i < 100; ++i) file << line << "\n";
  }
  v1::ReadLogs ask = AskForTraces(1, 2, 3);
  ask.set_window_bytes(10 * LogLineCost(1000));
  keeper_.Read(ask);
  for (int window = 1; window <= 20; ++window) {
    EXPECT_EQ(reader_.AwaitLines(window * 10), window * 10);
    v1::LogGrant grant;
    grant.set_request(1);
    grant.set_bytes(10 * LogLineCost(1000));
    keeper_.Grant(grant);
  }
  reader_.AwaitEnd();
  const std::vector<int64_t> steps = reader_.steps();
  ASSERT_EQ(steps.size(), 200u);
  EXPECT_TRUE(std::is_sorted(steps.begin(), steps.end())) << "one file after the other";
}

// A partly read file is an error, not NOT_FOUND.
TEST_F(LogKeeperTracesTest, FileRemovedBeforeItsTurnIsAnError) {
  const UniqueFd log = Open(kRank);
  const std::string directory = keeper_.DirectoryOf(kRank.of) + "/", line(1000, 'x');
  std::ofstream(directory + TraceFileName(1, 3)) << line << "\n" << line << "\n";
  std::ofstream(directory + TraceFileName(2, 3)) << line << "\n";
  v1::ReadLogs ask = AskForTraces(1, 2, 3);
  ask.set_window_bytes(LogLineCost(1000));
  keeper_.Read(ask);
  EXPECT_EQ(reader_.AwaitLines(1), 1);
  ASSERT_EQ(unlink((directory + TraceFileName(2, 3)).c_str()), 0);
  v1::LogGrant grant;
  grant.set_request(1);
  grant.set_bytes(10 * LogLineCost(1000));
  keeper_.Grant(grant);
  reader_.AwaitEnd();
  EXPECT_EQ(reader_.error(),
            "cannot read " + directory + TraceFileName(2, 3) + ": No such file or directory");
  EXPECT_FALSE(reader_.no_such_log());
}

TEST_F(LogKeeperTracesTest, MissingTraceIsNotFound) {
  const UniqueFd log = Open(kRank);
  keeper_.Read(AskForTraces(1, 100));
  reader_.AwaitEnd();
  EXPECT_EQ(reader_.error(), "this node does not have the trace of job=job attempt=2");
}

TEST_F(LogKeeperTracesTest, ReadsHangEvidence) {
  const UniqueFd log = Open(kRank);
  v1::ReadLogs ask = Ask(-1);
  ask.set_evidence(true);
  keeper_.Read(ask);
  reader_.AwaitEnd();
  EXPECT_EQ(reader_.error(), "this node has no hang evidence of job=job attempt=2");
  Write(log, "its log\n");
  for (const char* name : {"rank-3.hang.txt", "rank-2.hang.txt", "rank-4.hang.txt.part"})
    std::ofstream(keeper_.DirectoryOf(kRank.of) + "/" + name) << name << "\nend\n";
  keeper_.Read(ask);
  EXPECT_EQ(reader_.AwaitEnds(2), "2:rank-2.hang.txt\n2:end\n3:rank-3.hang.txt\n3:end\n");
  ask.set_rank(3);
  keeper_.Read(ask);
  EXPECT_EQ(reader_.AwaitEnds(3),
            "2:rank-2.hang.txt\n2:end\n3:rank-3.hang.txt\n3:end\n3:rank-3.hang.txt\n3:end\n");
}

}  // namespace
}  // namespace fsdpd
