// fsdpctl cordon and uncordon against a coordinator whose answers are written beforehand.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "client/outcome.h"
#include "client/testing/command_case.h"

namespace fsdpd {
namespace {

using ::testing::HasSubstr;

using NodeCommandsTest = ServedCommandCase;

TEST_F(NodeCommandsTest, CordonSendsTheReasonAndUncordonTakesItAway) {
  std::string reason;
  server_.on_cordon = [&](const v1::CordonNodeRequest& request, v1::CordonNodeResponse* response) {
    reason = request.reason();
    response->mutable_node()->set_name(request.node());
    response->mutable_node()->mutable_cordon()->set_reason(reason);
    return grpc::Status::OK;
  };
  server_.on_uncordon = [&](const v1::UncordonNodeRequest& request, v1::UncordonNodeResponse* response) {
    response->mutable_node()->set_name(request.node());
    return grpc::Status::OK;
  };
  EXPECT_EQ(Run({"cordon", "node-7", "--reason", "a fan is broken"}), kExitOk) << err_;
  EXPECT_EQ(out_, "node-7 cordoned\n");
  EXPECT_EQ(reason, "a fan is broken");
  EXPECT_EQ(Run({"cordon", "node-7", "-o", "yaml"}), kExitOk) << err_;
  EXPECT_THAT(out_, HasSubstr("cordon:\n"));
  EXPECT_EQ(Run({"uncordon", "node-7"}), kExitOk) << err_;
  EXPECT_EQ(out_, "node-7 open\n");
}

TEST_F(NodeCommandsTest, AnUnknownNodeIsNotFoundAndANodeMustBeNamed) {
  const auto refuse = [](const auto&, auto*) {
    return RefusalWithDetails(grpc::StatusCode::NOT_FOUND, "no node 'nod-7'", "NODE_NOT_FOUND");
  };
  server_.on_cordon = refuse;
  server_.on_uncordon = refuse;
  for (const char* command : {"cordon", "uncordon"}) {
    EXPECT_EQ(Run({command, "nod-7"}), kExitNotFound);
    EXPECT_EQ(err_, "fsdpctl: no node 'nod-7'; `fsdpctl nodes` lists the nodes\n");
    EXPECT_EQ(Run({command}), kExitUsage);
    EXPECT_THAT(err_, HasSubstr("NODE is required"));
  }
}

}  // namespace
}  // namespace fsdpd
