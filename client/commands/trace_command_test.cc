// Tests of `trace` with a scripted coordinator.
#include <absl/strings/str_split.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>

#include "base/temp_dir.h"
#include "client/connect/outcome.h"
#include "client/testing/command_case.h"
#include "fsdp/plan/predict/timeline.h"

namespace fsdpd {
namespace {

using Writer = grpc::ServerWriter<v1::TraceJobResponse>;

std::string Trace(int rank) {
  Timeline timeline;
  timeline.title = "rank " + std::to_string(rank);
  timeline.tracks = {"compute"};
  timeline.slices.push_back({0, "Forward", "Forward layer.0", 0, 1});
  timeline.begin_unix_nanos = 1'000'000'000 + rank;
  return TraceJson({timeline}, rank);
}

void Say(Writer* writer, int rank, int64_t step, const std::string& error) {
  v1::TraceJobResponse update;
  update.mutable_trace()->set_node("node-" + std::to_string(rank));
  update.mutable_trace()->set_rank(rank);
  update.mutable_trace()->mutable_trace()->set_step(step);
  update.mutable_trace()->mutable_trace()->set_error(error);
  writer->Write(update);
}

void Send(Writer* writer, int rank, int64_t step, const std::string& file) {
  for (const absl::string_view line :
       absl::StrSplit(absl::string_view(file).substr(0, file.size() - 1), '\n')) {
    v1::TraceJobResponse update;
    update.mutable_line()->set_rank(rank);
    update.mutable_line()->set_step(step);
    update.mutable_line()->set_line(std::string(line));
    writer->Write(update);
  }
}

class TraceCommandTest : public ServedCommandCase {
 protected:
  void SetUp() override {
    ServedCommandCase::SetUp();
    out_file_ = dir_.File("out.json");
  }

  int Run(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {"trace", "j", "--out", out_file_});
    return ServedCommandCase::Run(arguments);
  }
  std::string Written() const {
    std::ifstream file(out_file_);
    return std::string(std::istreambuf_iterator<char>(file), {});
  }

  TempDir dir_;
  std::string out_file_;
};

TEST_F(TraceCommandTest, MergesTracesOfRanks) {
  server_.on_trace = [](const v1::TraceJobRequest& request, auto*, Writer* writer) {
    EXPECT_EQ(request.id(), "j");
    EXPECT_EQ(request.steps(), 1);
    v1::TraceJobResponse update;
    update.mutable_order()->set_first_step(12);
    update.mutable_order()->set_steps(1);
    update.mutable_order()->set_ranks(2);
    writer->Write(update);
    for (const int rank : {1, 0}) Say(writer, rank, 12, "");
    for (const int rank : {1, 0}) Send(writer, rank, 12, Trace(rank));
    return grpc::Status::OK;
  };
  EXPECT_EQ(Run({}), kExitOk);
  EXPECT_EQ(err_, "tracing step 12 on 2 ranks\n");
  EXPECT_EQ(Written(), *JoinedTrace({Trace(0), Trace(1)}));
  EXPECT_EQ(out_.find(out_file_ + "  1 step (12) of 2 ranks, "), 0u) << out_;
}

TEST_F(TraceCommandTest, ReportsFailedRankAndWritesOthers) {
  server_.on_trace = [](const auto&, auto*, Writer* writer) {
    Say(writer, 0, 12, "no room \x1b[31m");
    Say(writer, 1, 12, "");
    Send(writer, 1, 12, Trace(1));
    return grpc::Status::OK;
  };
  EXPECT_EQ(Run({"-o", "json"}), kExitFailed);
  EXPECT_EQ(err_, "fsdpctl: step 12 of rank 0 on node-0 was not traced: no room \\x1b[31m\n");
  EXPECT_EQ(Written(), Trace(1));
  EXPECT_NE(out_.find("\"node-1\""), std::string::npos) << out_;
}

TEST_F(TraceCommandTest, ReportsMemorySnapshots) {
  server_.on_trace = [](const v1::TraceJobRequest& request, auto*, Writer* writer) {
    EXPECT_TRUE(request.memory_snapshot());
    for (const int rank : {0, 1, 2}) {
      v1::TraceJobResponse update;
      update.mutable_trace()->set_node("node-a");
      update.mutable_trace()->set_rank(rank);
      v1::StepTraceResult* const traced = update.mutable_trace()->mutable_trace();
      traced->set_step(12);
      traced->set_path("/w/trace.json");
      if (rank == 0) traced->mutable_memory_snapshot()->set_path("/w/memory.pickle");
      if (rank == 0) traced->mutable_memory_snapshot()->set_bytes(2048);
      if (rank == 1) traced->mutable_memory_snapshot()->set_error("no room");
      writer->Write(update);
    }
    Send(writer, 0, 12, Trace(0));
    return grpc::Status::OK;
  };
  EXPECT_EQ(Run({"--memory"}), kExitFailed);
  EXPECT_NE(out_.find("memory, for https://pytorch.org/memory_viz:\n"
                      "  step 12 of rank 0: node-a:/w/memory.pickle, 2.00 KiB\n"),
            std::string::npos)
      << out_;
  EXPECT_EQ(
      err_,
      "fsdpctl: the memory snapshot of step 12 of rank 1 on node-a was not written: no room\n"
      "fsdpctl: the memory snapshot of step 12 of rank 2 on node-a was not written: its node runs an older "
      "release without memory snapshots\n");
}

TEST_F(TraceCommandTest, ReportsMemoryOfSelectedRankOnly) {
  server_.on_trace = [](const v1::TraceJobRequest&, auto*, Writer* writer) {
    for (const int rank : {0, 1}) {
      v1::TraceJobResponse update;
      update.mutable_trace()->set_rank(rank);
      update.mutable_trace()->mutable_trace()->set_step(12);
      update.mutable_trace()->mutable_trace()->mutable_memory_snapshot()->set_path("/w/memory.pickle");
      writer->Write(update);
    }
    Send(writer, 0, 12, Trace(0));
    return grpc::Status::OK;
  };
  EXPECT_EQ(Run({"--memory", "--rank", "0"}), kExitOk) << err_;
  EXPECT_NE(out_.find("step 12 of rank 0: "), std::string::npos) << out_;
  EXPECT_EQ(out_.find("of rank 1"), std::string::npos) << out_;
}

TEST_F(TraceCommandTest, ChecksOutputBeforeTracing) {
  server_.on_trace = [](const v1::TraceJobRequest&, auto*, Writer*) {
    ADD_FAILURE() << "unexpected trace request";
    return grpc::Status::OK;
  };
  out_file_ = dir_.File("none/out.json");
  EXPECT_EQ(Run({}), kExitUsage);
  EXPECT_NE(err_.find(": no such directory: "), std::string::npos) << err_;
}

TEST_F(TraceCommandTest, WritesNoFileWithoutTrace) {
  server_.on_trace = [](const auto&, auto*, Writer* writer) {
    Say(writer, 0, 12, "no room");
    return RefusalWithDetails(grpc::StatusCode::NOT_FOUND, "node a: no such trace", "NOT_FOUND");
  };
  EXPECT_EQ(Run({}), kExitFailed);
  EXPECT_EQ(err_, "fsdpctl: step 12 of rank 0 on node-0 was not traced: no room\n");
  EXPECT_FALSE(std::filesystem::exists(out_file_));
}

TEST_F(TraceCommandTest, FetchesExistingTraces) {
  server_.on_trace = [](const v1::TraceJobRequest& request, auto*, Writer* writer) {
    EXPECT_EQ(request.steps(), 0);
    EXPECT_EQ(request.attempt(), 3);
    EXPECT_EQ(request.rank(), 0);
    for (const int64_t step : {20, 10}) Send(writer, 0, step, Trace(0));
    return grpc::Status::OK;
  };
  EXPECT_EQ(Run({"--written", "--attempt", "3", "--rank", "0"}), kExitOk);
  EXPECT_EQ(out_.find(out_file_ + "  2 steps (10 to 20) of 1 rank, "), 0u) << out_;
}

TEST_F(TraceCommandTest, RejectsTruncatedStream) {
  server_.on_trace = [](const auto&, auto*, Writer* writer) {
    Send(writer, 0, 12, Trace(0).substr(0, 60));
    return RefusalWithDetails(grpc::StatusCode::UNAVAILABLE, "the agent of node b is not connected",
                              "UNAVAILABLE");
  };
  EXPECT_EQ(Run({}), kExitUnavailable);
  EXPECT_EQ(err_, "fsdpctl: the agent of node b is not connected [UNAVAILABLE]\n");
  EXPECT_FALSE(std::filesystem::exists(out_file_));
}

TEST_F(TraceCommandTest, RejectsConflictingFlags) {
  EXPECT_EQ(Run({"--written", "--steps", "2"}), kExitUsage);
  EXPECT_EQ(Run({"--attempt", "2"}), kExitUsage);
  EXPECT_EQ(Run({"--written", "--memory"}), kExitUsage);
  EXPECT_EQ(Run({"--steps", "17"}), kExitUsage);
  EXPECT_NE(err_.find("'17' is not an integer from 1 to 16"), std::string::npos) << err_;
}

}  // namespace
}  // namespace fsdpd
