#include "coordinator/serve/acceptor.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <memory>
#include <vector>

#include "base/mutex.h"

namespace fsdpd {
namespace {

// Replaces a gRPC server: retains the connections that it receives.
class FakeSink : public Acceptor::Sink {
 public:
  void HandleNewConnection(NewConnectionParameters* connection) override {
    MutexLock lock(&mutex_);
    fds_.emplace_back(connection->fd);
    changed_.SignalAll();
  }
  void AwaitOne() {
    MutexLock lock(&mutex_);
    while (fds_.empty()) changed_.Wait(&mutex_);
  }
  void Close() {
    MutexLock lock(&mutex_);
    fds_.clear();
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  std::vector<UniqueFd> fds_ ABSL_GUARDED_BY(mutex_);
};

UniqueFd Connect(int port) {
  UniqueFd client(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const timeval patience = {30, 0};
  setsockopt(client.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  sockaddr_in server = {};
  server.sin_family = AF_INET;
  server.sin_port = htons(static_cast<uint16_t>(port));
  server.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(connect(client.get(), reinterpret_cast<sockaddr*>(&server), sizeof server), 0);
  return client;
}

TEST(Acceptor, ClosesConnectionsWithoutDescriptorsAndAcceptsLater) {
  auto acceptor = Acceptor::Open({"127.0.0.1", 0});
  ASSERT_TRUE(acceptor.ok()) << acceptor.status();
  auto sink = std::make_unique<FakeSink>();
  FakeSink* const connections = sink.get();
  (*acceptor)->Start(std::move(sink));
  const UniqueFd first = Connect((*acceptor)->port());
  connections->AwaitOne();

  rlimit limit = {}, small = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  small = limit;
  small.rlim_cur = 64;  // 8 of them are reserved.
  std::vector<UniqueFd> clients;
  while (clients.empty() || clients.back().get() < 60) clients.emplace_back(dup(first.get()));
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &small), 0);
  char byte;
  const UniqueFd refused = Connect((*acceptor)->port());
  EXPECT_EQ(read(refused.get(), &byte, 1), 0) << "closed by the acceptor";

  clients.clear();
  connections->Close();
  const UniqueFd second = Connect((*acceptor)->port());
  connections->AwaitOne();
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
}

TEST(Acceptor, RejectsAddressInUse) {
  const auto acceptor = Acceptor::Open({"127.0.0.1", 0});
  ASSERT_TRUE(acceptor.ok()) << acceptor.status();
  EXPECT_TRUE(absl::IsUnavailable(Acceptor::Open({"127.0.0.1", (*acceptor)->port()}).status()));
}

}  // namespace
}  // namespace fsdpd
