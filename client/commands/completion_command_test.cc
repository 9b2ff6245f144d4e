// Tests of completion: exit code, stdout and stderr.
#include <gtest/gtest.h>

#include "client/connect/outcome.h"
#include "client/testing/listed_jobs_case.h"

namespace fsdpd {
namespace {

using CompletionCommandTest = ListedJobsCase;

TEST_F(CompletionCommandTest, CompletionListsMatchingNames) {
  server_.on_nodes = [](const auto&, v1::ListNodesResponse* response) {
    response->add_nodes()->set_name("node-0");
    return grpc::Status::OK;
  };
  EXPECT_EQ(RunCommand({"__complete", "--server", server_.address(), "cancel", "t"}), kExitOk);
  EXPECT_EQ(out_, "tiny-b2\ntiny-a1\n");
  EXPECT_EQ(RunCommand({"__complete", "--server", server_.address(), "delete", ""}), kExitOk);
  EXPECT_EQ(out_, "") << "none has ended";
  EXPECT_EQ(RunCommand({"__complete", "--server", server_.address(), "cordon", ""}), kExitOk);
  EXPECT_EQ(out_, "node-0\n");
  server_.Stop();
  EXPECT_EQ(RunCommand({"__complete", "--server", server_.address(), "cordon", ""}), kExitOk);
  EXPECT_EQ(out_ + err_, "") << "no coordinator responds";
}

}  // namespace
}  // namespace fsdpd
