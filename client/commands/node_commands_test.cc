// Tests of node commands with a scripted coordinator.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "client/connect/outcome.h"
#include "client/testing/command_case.h"

namespace fsdpd {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

using NodeCommandsTest = ServedCommandCase;

TEST_F(NodeCommandsTest, CordonAndUncordon) {
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

// Regression: a second node was a usage error.
TEST_F(NodeCommandsTest, CordonContinuesAfterError) {
  server_.on_cordon = [](const v1::CordonNodeRequest& request, v1::CordonNodeResponse* response) {
    if (request.node() == "node-8")
      return RefusalWithDetails(grpc::StatusCode::NOT_FOUND, "no node 'node-8'", "NODE_NOT_FOUND");
    response->mutable_node()->set_name(request.node());
    response->mutable_node()->mutable_cordon()->set_reason(request.reason());
    return grpc::Status::OK;
  };
  server_.on_uncordon = [](const v1::UncordonNodeRequest& request, v1::UncordonNodeResponse* response) {
    response->mutable_node()->set_name(request.node());
    return grpc::Status::OK;
  };
  EXPECT_EQ(Run({"cordon", "node-7", "node-8", "node-9", "--reason", "moved"}), kExitNotFound);
  EXPECT_EQ(out_, "node-7 cordoned\nnode-9 cordoned\n");
  EXPECT_EQ(err_, "fsdpctl: no node 'node-8'; `fsdpctl nodes` lists the nodes [NODE_NOT_FOUND]\n");
  EXPECT_EQ(Run({"uncordon", "node-7", "node-9"}), kExitOk) << err_;
  EXPECT_EQ(out_, "node-7 open\nnode-9 open\n");
  EXPECT_EQ(Run({"cordon"}), kExitUsage);
  EXPECT_THAT(err_, HasSubstr("NODE is required"));
}

// Regression: each node was a separate document; later, the document had a date in 1970.
TEST_F(NodeCommandsTest, SeveralNodesAreOneDocument) {
  const auto take = [](const auto& request, auto* response) {
    response->mutable_node()->set_name(request.node());
    return grpc::Status::OK;
  };
  server_.on_cordon = take;
  server_.on_uncordon = take;
  for (const char* command : {"cordon", "uncordon"}) {
    std::vector<std::string> each;
    for (const char* node : {"a", "b"}) {
      EXPECT_EQ(Run({command, node, "-o", "json"}), kExitOk) << err_;
      EXPECT_EQ(out_.find(std::string("{\n  \"name\": \"") + node), 0U) << out_;
      each.push_back(out_);
    }
    EXPECT_EQ(Run({command, "a", "b", "-o", "json"}), kExitOk) << err_;
    EXPECT_EQ(out_, ListOf("nodes", each));
  }
}

TEST_F(NodeCommandsTest, NodesSelectsByLabel) {
  server_.on_nodes = [](const v1::ListNodesRequest&, v1::ListNodesResponse* response) {
    for (const char* gpu : {"h200", "b300"}) {
      v1::Node* const node = response->add_nodes();
      node->set_name(absl::StrCat("with-", gpu));
      node->add_labels()->set_key("gpu");
      node->mutable_labels(0)->set_value(gpu);
    }
    return grpc::Status::OK;
  };
  EXPECT_EQ(Run({"nodes", "-l", "gpu=h200", "-o", "name"}), kExitOk) << err_;
  EXPECT_EQ(out_, "with-h200\n");
  EXPECT_EQ(Run({"nodes", "-l", "gpu in (h200)"}), kExitUsage);
}

TEST_F(NodeCommandsTest, DeleteReportsPausedJobs) {
  server_.on_delete_node = [](const v1::DeleteNodeRequest& request, v1::DeleteNodeResponse* response) {
    response->mutable_node()->set_name(request.node());
    for (const char* job : {"j-1", "j-2"}) response->mutable_node()->add_unconfirmed_jobs(job);
    return grpc::Status::OK;
  };
  server_.on_get = [](const v1::GetJobRequest& request, v1::GetJobResponse* response) {
    response->mutable_job()->set_state(request.id() == "j-1" ? v1::JOB_STATE_PAUSING : v1::JOB_STATE_RUNNING);
    return grpc::Status::OK;
  };
  EXPECT_EQ(Run({"node", "delete", "node-7", "--force"}), kExitOk) << err_;
  EXPECT_EQ(out_, "node-7 deleted\n");
  EXPECT_EQ(
      err_,
      "fsdpctl: j-1, which had ranks there, is pausing and no longer waits for them; `fsdpctl resume j-1` "
      "continues it\n");
}

TEST_F(NodeCommandsTest, DeleteRequiresForceIfRanksMayRun) {
  bool force = false;
  server_.on_delete_node = [&](const v1::DeleteNodeRequest& request, v1::DeleteNodeResponse* response) {
    force = request.force();
    if (!force)
      return RefusalWithDetails(grpc::StatusCode::FAILED_PRECONDITION,
                                "node node-7 was lost with ranks of j-1, which may still run",
                                "RANKS_UNCONFIRMED");
    response->mutable_node()->set_name(request.node());
    return grpc::Status::OK;
  };
  EXPECT_EQ(Run({"node", "delete", "node-7"}), kExitFailed);
  EXPECT_EQ(err_,
            "fsdpctl: node node-7 was lost with ranks of j-1, which may still run [RANKS_UNCONFIRMED]\n");
  EXPECT_EQ(Run({"node", "delete", "node-7", "--force"}), kExitOk) << err_;
  EXPECT_TRUE(force);
  EXPECT_EQ(out_, "node-7 deleted\n");
  EXPECT_EQ(Run({"node"}), kExitUsage);
  EXPECT_EQ(Run({"node", "delete"}), kExitUsage);
  EXPECT_THAT(err_, HasSubstr("NODE is required"));
}

TEST_F(NodeCommandsTest, PreflightWaitsForResult) {
  int looks = 0;
  server_.on_preflight = [&](const v1::PreflightNodeRequest& request, v1::PreflightNodeResponse* response) {
    looks = 0;
    response->mutable_node()->set_name(request.node());
    response->mutable_node()->set_in_preflight(true);
    return grpc::Status::OK;
  };
  std::string fault;
  bool measures = true, cordoned = false;
  server_.on_nodes = [&](const v1::ListNodesRequest&, v1::ListNodesResponse* response) {
    v1::Node* node = response->add_nodes();
    node->set_name("node-7");
    if (cordoned) node->mutable_cordon()->set_reason("a fan");
    node->set_in_preflight(++looks < 2);
    if (looks < 2 || !measures) return grpc::Status::OK;
    node->mutable_preflight()->set_unix_nanos(1);
    node->mutable_preflight()->mutable_result()->add_devices()->set_name("NVIDIA H200");
    if (!fault.empty()) node->mutable_preflight()->add_violations(fault);
    return grpc::Status::OK;
  };
  EXPECT_EQ(Run({"preflight", "node-7"}), kExitOk) << err_;
  EXPECT_EQ(looks, 2);
  EXPECT_THAT(out_, HasSubstr("node-7 has passed its preflight"));
  EXPECT_THAT(out_, Not(HasSubstr("cordoned")));
  cordoned = true;
  EXPECT_EQ(Run({"preflight", "node-7"}), kExitOk) << err_;
  EXPECT_THAT(out_, HasSubstr("node-7 remains cordoned until fsdpctl uncordon node-7\n"));
  fault = "device 0: product rate 402 TFLOP/s, floor 540";
  EXPECT_EQ(Run({"preflight", "node-7"}), kExitFailed);
  EXPECT_THAT(out_, HasSubstr(fault));
  EXPECT_EQ(Run({"preflight", "node-7", "-o", "json"}), kExitFailed);
  EXPECT_THAT(out_, HasSubstr("\"violations\""));
  looks = 1;
  EXPECT_EQ(Run({"describe", "node", "node-7"}), kExitOk) << err_;
  EXPECT_THAT(out_, HasSubstr(fault));
  measures = false;
  EXPECT_EQ(Run({"preflight", "node-7"}), kExitFailed);
  EXPECT_THAT(err_, HasSubstr("node-7 could not be measured"));
}

TEST_F(NodeCommandsTest, DescribeNodePrintsNode) {
  server_.on_nodes = [](const v1::ListNodesRequest&, v1::ListNodesResponse*) { return grpc::Status::OK; };
  EXPECT_EQ(Run({"describe", "node", "nod-7"}), kExitNotFound);
  EXPECT_EQ(err_, "fsdpctl: no node 'nod-7'; `fsdpctl nodes` lists the nodes [NODE_NOT_FOUND]\n");
  EXPECT_EQ(Run({"describe", "tiny-k3x9q2", "node-7"}), kExitUsage);
  EXPECT_EQ(err_, "fsdpctl: describe requires exactly one JOB, or `node NODE` [INVALID_FLAG]\n");
  // Regression: the error was "no job 'node'".
  EXPECT_EQ(Run({"describe", "node"}), kExitUsage);
  EXPECT_EQ(
      err_,
      "fsdpctl: describe requires JOB, or `node NODE`; `fsdpctl nodes` lists the nodes [INVALID_FLAG]\n");
}

// Regression: with the client's clock an hour ahead, all nodes were shown as last seen an hour ago.
TEST_F(NodeCommandsTest, AgesUseCoordinatorTime) {
  server_.on_nodes = [](const v1::ListNodesRequest&, v1::ListNodesResponse* response) {
    const int64_t date = absl::ToUnixNanos(absl::Now() - absl::Hours(1));
    response->set_unix_nanos(date);
    v1::Node* node = response->add_nodes();
    node->set_name("node-7");
    node->set_last_seen_unix_nanos(date - absl::ToInt64Nanoseconds(absl::Seconds(3)));
    node->add_unconfirmed_jobs("j-1");
    node->mutable_preflight()->set_unix_nanos(date - absl::ToInt64Nanoseconds(absl::Seconds(4)));
    return grpc::Status::OK;
  };
  server_.on_preflight = [](const v1::PreflightNodeRequest&, v1::PreflightNodeResponse* response) {
    response->mutable_node()->set_in_preflight(true);
    return grpc::Status::OK;
  };
  EXPECT_EQ(Run({"nodes"}), kExitOk) << err_;
  EXPECT_THAT(out_, HasSubstr(" 3 s ago"));
  EXPECT_EQ(Run({"describe", "node", "node-7"}), kExitOk) << err_;
  EXPECT_THAT(out_, HasSubstr(" 3 s ago"));
  EXPECT_THAT(out_, HasSubstr("node-7 was lost with ranks of j-1, which may still run\n"));
  EXPECT_EQ(Run({"preflight", "node-7"}), kExitOk) << err_;
  EXPECT_THAT(out_, HasSubstr("node-7 has passed its preflight 4 s ago"));
}

TEST_F(NodeCommandsTest, RejectsUnknownNode) {
  const auto refuse = [](const auto&, auto*) {
    return RefusalWithDetails(grpc::StatusCode::NOT_FOUND, "no node 'nod-7'", "NODE_NOT_FOUND");
  };
  server_.on_cordon = refuse;
  server_.on_uncordon = refuse;
  server_.on_preflight = refuse;
  for (const char* command : {"cordon", "uncordon", "preflight"}) {
    EXPECT_EQ(Run({command, "nod-7"}), kExitNotFound);
    EXPECT_EQ(err_, "fsdpctl: no node 'nod-7'; `fsdpctl nodes` lists the nodes [NODE_NOT_FOUND]\n");
    EXPECT_EQ(Run({command}), kExitUsage);
    EXPECT_THAT(err_, HasSubstr("NODE is required"));
  }
}

}  // namespace
}  // namespace fsdpd
