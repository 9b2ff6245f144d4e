// Tests of nodes, version and watch: exit code, stdout and stderr.
#include <gtest/gtest.h>

#include "client/connect/outcome.h"
#include "client/testing/command_case.h"

namespace fsdpd {
namespace {

using JobCommandsTest = ServedCommandCase;

TEST_F(JobCommandsTest, EmptyListIsValidJson) {
  server_.on_nodes = [](const auto&, auto*) { return grpc::Status::OK; };
  EXPECT_EQ(Run({"nodes", "-o", "json"}), 0);
  EXPECT_EQ(out_, "{\n  \"nodes\": [],\n  \"unix_nanos\": 0\n}\n");
  EXPECT_EQ(Run({"nodes", "-o", "yaml"}), 0);
  EXPECT_EQ(out_, "nodes: []\nunix_nanos: 0\n");
}

// Regression: JSON and YAML omitted zeros and had different enum names.
TEST_F(JobCommandsTest, DataHasZerosAndShortEnumNames) {
  server_.on_nodes = [](const auto&, v1::ListNodesResponse* response) {
    response->add_nodes()->set_device(v1::DEVICE_CUDA);
    return grpc::Status::OK;
  };
  EXPECT_EQ(Run({"nodes", "-o", "json"}), 0);
  for (const char* field : {"\"connected\": false", "\"free_slots\": 0", "\"device\": \"cuda\"",
                            "\"memory_bytes_per_slot\": 0", "\"version\": \"\""}) {
    EXPECT_NE(out_.find(field), std::string::npos) << field << " in " << out_;
  }
  EXPECT_EQ(Run({"nodes", "-o", "yaml"}), 0);
  for (const char* field :
       {"connected: false", "free_slots: 0", "device: cuda", "memory_bytes_per_slot: 0", "version: \"\""}) {
    EXPECT_NE(out_.find(field), std::string::npos) << field << " in " << out_;
  }
}

TEST_F(JobCommandsTest, VersionPrintsClientAndServer) {
  server_.on_version = [](const auto&, v1::GetVersionResponse* response) {
    response->set_version("9.9");
    return grpc::Status::OK;
  };
  EXPECT_EQ(Run({"version"}), 0);
  EXPECT_EQ(out_, "client  0.1.0\nserver  9.9\n");
}

TEST_F(JobCommandsTest, EscapesQuoteInVersion) {
  server_.on_version = [](const auto&, v1::GetVersionResponse* response) {
    response->set_version("9.9\"\\\n");
    return grpc::Status::OK;
  };
  EXPECT_EQ(Run({"version", "-o", "json"}), 0);
  EXPECT_EQ(out_, R"({"client": "0.1.0", "server": "9.9\"\\\n"})"
                  "\n");
  EXPECT_EQ(Run({"version", "-o", "yaml"}), 0);
  EXPECT_EQ(out_, "client: \"0.1.0\"\nserver: \"9.9\\\"\\\\\\n\"\n");
}

TEST_F(JobCommandsTest, WatchExitsWithResultOfJob) {
  server_.on_watch = [](const v1::WatchJobRequest& request, grpc::ServerContext*,
                        grpc::ServerWriter<v1::WatchJobResponse>* writer) {
    v1::WatchJobResponse update;
    update.mutable_job()->set_id(request.id());
    update.mutable_job()->set_state(v1::JOB_STATE_RUNNING);
    update.mutable_job()->set_revision(1);
    writer->Write(update);
    update.mutable_job()->set_state(request.id() == "good" ? v1::JOB_STATE_SUCCEEDED : v1::JOB_STATE_FAILED);
    update.mutable_job()->set_revision(2);
    update.mutable_job()->mutable_failure()->set_error("boom");
    writer->Write(update);
    return grpc::Status::OK;
  };
  EXPECT_EQ(Run({"watch", "good"}), kExitOk);
  EXPECT_EQ(out_, "good running\ngood succeeded after 0 steps\n");
  EXPECT_EQ(Run({"watch", "bad"}), kExitJobFailed);
  EXPECT_NE(out_.find("boom"), std::string::npos);
}

}  // namespace
}  // namespace fsdpd
