// Test fixture of a complete coordinator in this process: a real server on a free port, and a real client.
#pragma once

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <memory>

#include "base/temp_dir.h"
#include "coordinator/serve/server.h"
#include "proto/fsdpd/v1/coordinator.grpc.pb.h"

namespace fsdpd {

class ServedCase : public ::testing::Test {
 protected:
  void SetUp() override {
    ServerOptions options;
    options.listen = "127.0.0.1:0";
    options.state_dir = dir_.path();
    options.reconciler.tick = absl::Milliseconds(10);
    auto server = Server::Start(options);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = std::move(*server);
    stub_ =
        v1::Coordinator::NewStub(grpc::CreateChannel(server_->address(), grpc::InsecureChannelCredentials()));
  }

  TempDir dir_;
  std::unique_ptr<Server> server_;
  std::unique_ptr<v1::Coordinator::Stub> stub_;
};

}  // namespace fsdpd
