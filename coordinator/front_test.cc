// Real servers and clients on ports of their own.
#include "coordinator/front.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>

#include "base/unique_fd.h"
#include "proto/fsdpd/v1/agent.grpc.pb.h"
#include "proto/fsdpd/v1/coordinator.grpc.pb.h"

namespace fsdpd {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

// One of whose services has handlers and one callbacks, as a coordinator's; neither of them does anything.
class FrontTest : public ::testing::Test {
 protected:
  void SetUp() override {
    FrontOptions options;
    options.listen = "127.0.0.1:0";
    absl::StatusOr<Front> front = OpenFront(options, {},
                                            {{&calls_, v1::Coordinator::service_full_name(), true},
                                             {&streams_, v1::AgentLink::service_full_name(), true}});
    ASSERT_TRUE(front.ok()) << front.status();
    front_ = std::move(*front);
  }
  void TearDown() override { front_.Stop(); }

  // Until a server greets who connects. By a socket: a client of gRPC in this process would read for the
  // server.
  steady_clock::duration Greeting() {
    const std::string& at = front_.address;
    sockaddr_in server = {};
    server.sin_family = AF_INET;
    server.sin_port = htons(static_cast<uint16_t>(std::stoi(at.substr(at.rfind(':') + 1))));
    server.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const auto begin = steady_clock::now();
    const UniqueFd client(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(connect(client.get(), reinterpret_cast<sockaddr*>(&server), sizeof(server)), 0);
    char byte;
    EXPECT_EQ(read(client.get(), &byte, 1), 1);
    return steady_clock::now() - begin;
  }

  v1::Coordinator::Service calls_;
  v1::AgentLink::CallbackService streams_;
  Front front_;
};

// A busy machine makes some wait too, but not some in each 1.1 s for ever.
TEST_F(FrontTest, NobodyWaitsWhileThreadsOfCallbacksRest) {
  constexpr milliseconds kRest(100);
  steady_clock::duration longest = {};
  for (int tries = 0; tries < 20; ++tries) {
    longest = {};
    for (const auto begin = steady_clock::now(); steady_clock::now() - begin < milliseconds(1300);) {
      std::this_thread::sleep_for(milliseconds(5));
      longest = std::max(longest, Greeting());
    }
    if (longest < kRest / 2) return;
  }
  FAIL() << "somebody waited for " << longest / milliseconds(1) << " ms";
}

TEST_F(FrontTest, AnAddressThatIsInUseIsSaid) {
  FrontOptions options;
  options.listen = front_.address;
  v1::Coordinator::Service calls;
  EXPECT_TRUE(absl::IsUnavailable(
      OpenFront(options, {}, {{&calls, v1::Coordinator::service_full_name(), true}}).status()));
}

TEST_F(FrontTest, StopsTwice) {
  front_.Stop();
  front_.Stop();
}

}  // namespace
}  // namespace fsdpd
