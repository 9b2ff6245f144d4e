// Tests of top: exit code, stdout and stderr.
#include <gtest/gtest.h>

#include "client/connect/outcome.h"
#include "client/testing/listed_jobs_case.h"

namespace fsdpd {
namespace {

using TopCommandTest = ListedJobsCase;

TEST_F(TopCommandTest, TopPrintsOnceWithoutTerminal) {
  server_.on_nodes = [](const auto&, auto*) { return grpc::Status::OK; };
  EXPECT_EQ(Run({"top"}), kExitOk) << err_;
  EXPECT_NE(out_.find("big-c3"), std::string::npos) << out_;
  EXPECT_EQ(out_.find("tiny-a1"), std::string::npos) << "it waits\n" << out_;
  EXPECT_EQ(out_.find('\x1b'), std::string::npos);
}

}  // namespace
}  // namespace fsdpd
