// Real servers and clients on their own ports.
#include "coordinator/serve/public_server.h"

#include <arpa/inet.h>
#include <grpc/support/cpu.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "base/unique_fd.h"
#include "proto/fsdpd/v1/agent.grpc.pb.h"
#include "proto/fsdpd/v1/coordinator.grpc.pb.h"

namespace fsdpd {
namespace {

// Number of gRPC threads that run the callbacks of a process (CallbackAlternativeCQ).
int CallbackThreads() { return std::clamp(static_cast<int>(gpr_cpu_num_cores() / 2), 2, 16); }

// Each call blocks its thread until all calls are released.
class HeldCalls : public v1::AgentLink::CallbackService {
 public:
  using Reactor = grpc::ServerBidiReactor<v1::AgentMessage, v1::CoordinatorMessage>;

  Reactor* Attach(grpc::CallbackServerContext*) override {
    class Ends : public Reactor {
     public:
      Ends() { Finish(grpc::Status::OK); }
      void OnDone() override { delete this; }
    };
    MutexLock lock(&mutex_);
    ++held_;
    changed_.SignalAll();
    while (!let_go_) changed_.Wait(&mutex_);
    return new Ends;
  }

  void AwaitHeld(int calls) {
    MutexLock lock(&mutex_);
    while (held_ < calls) changed_.Wait(&mutex_);
  }

  void LetGo() {
    MutexLock lock(&mutex_);
    let_go_ = true;
    changed_.SignalAll();
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  int held_ ABSL_GUARDED_BY(mutex_) = 0;
  bool let_go_ ABSL_GUARDED_BY(mutex_) = false;
};

// One service with handlers and one with callbacks, as in a coordinator.
class PublicServerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    PublicServerOptions options;
    options.listen = "127.0.0.1:0";
    absl::StatusOr<PublicServer> listener =
        OpenPublicServer(options, {},
                         {{&calls_, v1::Coordinator::service_full_name(), true},
                          {&streams_, v1::AgentLink::service_full_name(), true}});
    ASSERT_TRUE(listener.ok()) << listener.status();
    listener_ = std::move(*listener);
  }
  void TearDown() override { listener_.Stop(); }

  // Connects and waits for the server's HTTP/2 settings, which it sends once it reads its sockets. Uses a
  // plain socket, because a gRPC client in this process would poll for the server. The timeout of half a
  // minute only ends a failing test.
  bool IsGreeted() {
    const std::string& at = listener_.address;
    sockaddr_in server = {};
    server.sin_family = AF_INET;
    server.sin_port = htons(static_cast<uint16_t>(std::stoi(at.substr(at.rfind(':') + 1))));
    server.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const UniqueFd client(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const timeval patience = {30, 0};
    setsockopt(client.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    if (connect(client.get(), reinterpret_cast<sockaddr*>(&server), sizeof(server)) != 0) return false;
    char byte;
    return read(client.get(), &byte, 1) == 1;
  }

  // Blocks all callback threads. The client is destroyed afterwards, because a gRPC channel sometimes polls
  // for the whole process.
  void HoldThreads() {
    const std::unique_ptr<v1::AgentLink::Stub> stub =
        v1::AgentLink::NewStub(grpc::CreateChannel(listener_.address, grpc::InsecureChannelCredentials()));
    grpc::CompletionQueue queue;
    std::vector<grpc::ClientContext> contexts(static_cast<size_t>(CallbackThreads()));
    std::vector<std::unique_ptr<grpc::ClientAsyncReaderWriter<v1::AgentMessage, v1::CoordinatorMessage>>> all;
    for (grpc::ClientContext& context : contexts)
      all.push_back(stub->AsyncAttach(&context, &queue, &context));
    streams_.AwaitHeld(CallbackThreads());
    for (grpc::ClientContext& context : contexts) context.TryCancel();
    queue.Shutdown();
    void* tag = nullptr;
    bool ok = false;
    while (queue.Next(&tag, &ok)) continue;
  }

  v1::Coordinator::Service calls_;
  HeldCalls streams_;
  PublicServer listener_;
};

// Regression: callback threads slept for 100 ms after each second without a callback, and every call waited
// for that. Here the callbacks never return, so the test needs no clock to show which thread polls.
TEST_F(PublicServerTest, AcceptsCallsWhileCallbackThreadsAreBlocked) {
  HoldThreads();
  EXPECT_TRUE(IsGreeted());
  streams_.LetGo();
}

TEST_F(PublicServerTest, ReportsAddressInUse) {
  PublicServerOptions options;
  options.listen = listener_.address;
  v1::Coordinator::Service calls;
  EXPECT_TRUE(absl::IsUnavailable(
      OpenPublicServer(options, {}, {{&calls, v1::Coordinator::service_full_name(), true}}).status()));
}

TEST_F(PublicServerTest, StopsTwice) {
  listener_.Stop();
  listener_.Stop();
}

}  // namespace
}  // namespace fsdpd
