// Test fixture of a complete coordinator in this process: a real server on a free port with real SQLite, a
// real client, and scripted agents.
#pragma once

#include <absl/time/time.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/temp_dir.h"
#include "coordinator/serve/server.h"
#include "coordinator/testing/scripted_agent.h"
#include "proto/fsdpd/v1/coordinator.grpc.pb.h"

namespace fsdpd {

class ServedCase : public ::testing::Test {
 protected:
  void SetUp() override { StartServer(); }

  void StartServer(absl::Duration reattach_grace = absl::Seconds(20)) {
    ServerOptions options;
    options.listen = "127.0.0.1:0";
    options.state_dir = dir_.path();
    options.reconciler.tick = absl::Milliseconds(10);
    options.reconciler.reattach_grace = reattach_grace;
    options.reconciler.verdict.settle = absl::Milliseconds(100);
    auto server = Server::Start(options);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = std::move(*server);
    stub_ =
        v1::Coordinator::NewStub(grpc::CreateChannel(server_->address(), grpc::InsecureChannelCredentials()));
  }

  std::unique_ptr<ScriptedAgent> Agent(const std::string& node, int slots,
                                       const std::vector<v1::HostedAttempt>& hosted = {}) {
    auto agent = std::make_unique<ScriptedAgent>(server_->address(),
                                                 ScriptedAgent::Options{node, slots, "first", hosted, 0});
    EXPECT_TRUE(agent->AwaitWelcome());
    return agent;
  }

  grpc::Status Submit(const v1::JobSpec& spec, const std::string& request_id, v1::Job* job) {
    grpc::ClientContext context;
    v1::SubmitJobRequest request;
    *request.mutable_spec() = spec;
    request.set_request_id(request_id);
    v1::SubmitJobResponse response;
    const grpc::Status status = stub_->SubmitJob(&context, request, &response);
    *job = response.job();
    return status;
  }
  v1::Job SubmitOrDie(const v1::JobSpec& spec) {
    v1::Job job;
    const grpc::Status status = Submit(spec, "", &job);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return job;
  }
  v1::Job Get(const std::string& id) {
    grpc::ClientContext context;
    v1::GetJobRequest request;
    request.set_id(id);
    v1::GetJobResponse response;
    const grpc::Status status = stub_->GetJob(&context, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response.job();
  }
  grpc::Status Cancel(const std::string& id, v1::Job* job) {
    grpc::ClientContext context;
    v1::CancelJobRequest request;
    request.set_id(id);
    request.set_reason("the test says so");
    v1::CancelJobResponse response;
    const grpc::Status status = stub_->CancelJob(&context, request, &response);
    *job = response.job();
    return status;
  }
  // Watches until `done` returns true. The deadline only limits a failing test.
  template <typename Done>
  v1::Job AwaitJob(const std::string& id, const Done& done) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(120));
    v1::WatchJobRequest request;
    request.set_id(id);
    auto reader = stub_->WatchJob(&context, request);
    v1::WatchJobResponse update;
    v1::Job job;
    while (reader->Read(&update)) {
      if (!update.has_job()) continue;
      job = update.job();
      if (done(job)) return job;
    }
    ADD_FAILURE() << "the watch ended: " << reader->Finish().error_message() << job.ShortDebugString();
    return job;
  }
  v1::Job AwaitState(const std::string& id, v1::JobState state) {
    return AwaitJob(id, [&](const v1::Job& job) { return job.state() == state; });
  }

  TempDir dir_;
  std::unique_ptr<Server> server_;
  std::unique_ptr<v1::Coordinator::Stub> stub_;
};

}  // namespace fsdpd
