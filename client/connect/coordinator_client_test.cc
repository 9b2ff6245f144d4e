#include "client/connect/coordinator_client.h"

#include <absl/strings/str_cat.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <memory>
#include <sstream>
#include <thread>

#include "base/check.h"
#include "base/temp_dir.h"
#include "base/testing/certificate.h"
#include "client/testing/scripted_api.h"

namespace fsdpd {
namespace {

class CoordinatorClientTest : public testing::Test {
 protected:
  void SetUp() override { server_.Start(); }

  CoordinatorClient::Options Patience(absl::Duration timeout) { return {timeout, timeout}; }

  Interrupt interrupt_;
  Interrupt release_;   // Hooks wait for it.
  ScriptedApi server_;  // Last member, so that it stops before objects that its hooks use are destroyed.
};

// Regression: a spec that a coordinator of 0.1 rejected was a usage error, with its first violation only.
TEST_F(CoordinatorClientTest, ReadsTheReasonOfRelease01) {
  server_.on_submit = [](const auto&, auto*) {
    return RefusalWithDetails(grpc::StatusCode::INVALID_ARGUMENT, "the job spec has 1 fault", "BAD_SPEC",
                              {{"train.steps", "is 0"}});
  };
  CoordinatorClient client(server_.address(), {});
  EXPECT_EQ(ReasonOf(client.SubmitJob({}).status()), "INVALID_SPEC");
}

TEST_F(CoordinatorClientTest, DecodesErrorDetails) {
  server_.on_submit = [](const auto&, auto*) {
    return RefusalWithDetails(grpc::StatusCode::INVALID_ARGUMENT, "the job spec has 2 errors", "INVALID_SPEC",
                              {{"train.steps", "is 0"}, {"data", "is missing"}});
  };
  CoordinatorClient client(server_.address(), {});
  const absl::Status status = client.SubmitJob({}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "the job spec has 2 errors");
  EXPECT_EQ(ReasonOf(status), "INVALID_SPEC");
  const Violations fields = FieldViolationsOf(status);
  ASSERT_EQ(fields.size(), 2u);
  EXPECT_EQ(fields[0].field, "train.steps");
  EXPECT_EQ(fields[1].reason, "is missing");
}

TEST_F(CoordinatorClientTest, AcceptsErrorWithoutDetails) {
  server_.on_get = [](const auto&, auto*) {
    return grpc::Status(grpc::StatusCode::NOT_FOUND, "no job 'x'", "garbage");
  };
  CoordinatorClient client(server_.address(), {});
  const absl::Status status = client.GetJob({}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(ReasonOf(status), "");
  EXPECT_TRUE(FieldViolationsOf(status).empty());
}

TEST_F(CoordinatorClientTest, RetriesIdempotentCall) {
  const auto calls = std::make_shared<std::atomic<int>>(0);
  server_.on_version = [calls](const auto&, auto* response) {
    if (++*calls < 3) return grpc::Status(grpc::StatusCode::UNAVAILABLE, "not the leader yet");
    response->set_version("9");
    return grpc::Status::OK;
  };
  CoordinatorClient client(server_.address(), {});
  const auto response = client.GetVersion({});
  ASSERT_TRUE(response.ok()) << response.status();
  EXPECT_EQ(response->version(), "9");
  EXPECT_EQ(*calls, 3);
}

TEST_F(CoordinatorClientTest, RetriesSubmitOnlyWithRequestId) {
  const auto calls = std::make_shared<std::atomic<int>>(0);
  server_.on_submit = [calls](const auto&, auto*) {
    return ++*calls < 2 ? grpc::Status(grpc::StatusCode::UNAVAILABLE, "busy") : grpc::Status::OK;
  };
  CoordinatorClient client(server_.address(), {});
  EXPECT_TRUE(absl::IsUnavailable(client.SubmitJob({}).status()));
  *calls = 0;
  v1::SubmitJobRequest request;
  request.set_request_id("r");
  EXPECT_TRUE(client.SubmitJob(request).ok());
}

TEST_F(CoordinatorClientTest, DoesNotRetryDeleteNode) {
  const auto calls = std::make_shared<std::atomic<int>>(0);
  server_.on_delete_node = [calls](const auto&, auto*) {
    ++*calls;
    return grpc::Status(grpc::StatusCode::UNAVAILABLE, "going away");
  };
  CoordinatorClient client(server_.address(), {});
  EXPECT_TRUE(absl::IsUnavailable(client.DeleteNode({}).status()));
  EXPECT_EQ(*calls, 1);
}

TEST_F(CoordinatorClientTest, FindsLeader) {
  ScriptedApi standby;
  standby.Start();
  const auto refuse = [this](const auto&, auto*) {
    return RefusalWithDetails(grpc::StatusCode::UNAVAILABLE, "stands by", "NOT_LEADER", {},
                              {{"leader", server_.address()}});
  };
  standby.on_submit = refuse;
  const auto submits = std::make_shared<std::atomic<int>>(0);
  server_.on_submit = [submits](const auto&, auto* answer) {
    ++*submits;
    answer->mutable_job()->set_id("j");
    return grpc::Status::OK;
  };
  // The first address refuses connections, and the leader is not in the list; the standby names it.
  CoordinatorClient client(absl::StrCat("127.0.0.1:1,", standby.address()), {});
  ASSERT_TRUE(client.Connect().ok());
  const auto submitted =
      client.SubmitJob({});  // Retried without a request id, because a standby has no effect.
  ASSERT_TRUE(submitted.ok()) << submitted.status();
  EXPECT_EQ(*submits, 1);
}

TEST_F(CoordinatorClientTest, SwitchesImmediatelyToNewLeader) {
  ScriptedApi standby;
  standby.Start();
  const auto asked = std::make_shared<std::atomic<int>>(0);
  // There is no leader for eleven calls, each with a backoff. The twelfth names one, which is called
  // immediately: the next backoff would be a minute.
  constexpr int kWithoutOne = 11;
  standby.on_submit = [this, asked](const auto&, auto*) {
    if (++*asked <= kWithoutOne)
      return RefusalWithDetails(grpc::StatusCode::UNAVAILABLE, "none leads", "NOT_LEADER", {}, {},
                                absl::Milliseconds(1));
    return RefusalWithDetails(grpc::StatusCode::UNAVAILABLE, "stands by", "NOT_LEADER", {},
                              {{"leader", server_.address()}}, absl::Minutes(1));
  };
  server_.on_submit = [](const auto&, auto* answer) {
    answer->mutable_job()->set_id("j");
    return grpc::Status::OK;
  };
  CoordinatorClient client(standby.address(), {});
  const auto submitted = client.SubmitJob({});
  ASSERT_TRUE(submitted.ok()) << submitted.status();
  EXPECT_EQ(*asked, kWithoutOne + 1);
}

TEST_F(CoordinatorClientTest, FailsOverToOtherCoordinator) {
  auto first = std::make_unique<ScriptedApi>();
  first->Start();
  for (ScriptedApi* each : {first.get(), &server_})
    each->on_version = [each, this](const auto&, auto* answer) {
      answer->set_version(each == &server_ ? "second" : "first");
      return grpc::Status::OK;
    };
  CoordinatorClient client(absl::StrCat(first->address(), ",", server_.address()), {});
  ASSERT_TRUE(client.Connect().ok());
  EXPECT_EQ(client.GetVersion({})->version(), "first");
  first.reset();
  const auto answered = client.GetVersion({});
  ASSERT_TRUE(answered.ok()) << answered.status();
  EXPECT_EQ(answered->version(), "second");
}

TEST_F(CoordinatorClientTest, RetriesWhenCoordinatorCancels) {
  const auto calls = std::make_shared<std::atomic<int>>(0);
  const auto ends_the_first = [calls](const auto&, auto*) {
    return ++*calls == 1 ? grpc::Status(grpc::StatusCode::CANCELLED, "") : grpc::Status::OK;
  };
  server_.on_get = ends_the_first;
  server_.on_submit = ends_the_first;
  CoordinatorClient client(server_.address(), {});
  EXPECT_TRUE(client.GetJob({}).ok());
  EXPECT_EQ(*calls, 2);
  *calls = 0;
  const absl::Status twice =
      client.SubmitJob({}).status();  // A retry without a request id could make two jobs.
  EXPECT_TRUE(absl::IsUnavailable(twice)) << twice;
  EXPECT_EQ(twice.message(), "the coordinator stopped before it answered");
}

TEST_F(CoordinatorClientTest, DoesNotRetryPermanentErrors) {
  const auto calls = std::make_shared<std::atomic<int>>(0);
  server_.on_get = [calls](const auto&, auto*) {
    ++*calls;
    return grpc::Status(grpc::StatusCode::NOT_FOUND, "no");
  };
  CoordinatorClient client(server_.address(), {});
  EXPECT_TRUE(absl::IsNotFound(client.GetJob({}).status()));
  EXPECT_EQ(*calls, 1);
}

TEST_F(CoordinatorClientTest, StopsAtDeadline) {
  server_.on_nodes = [&](const auto&, auto*) {
    release_.WaitFor(std::chrono::hours(1));
    return grpc::Status::OK;
  };
  CoordinatorClient client(server_.address(), Patience(absl::Milliseconds(300)));
  EXPECT_TRUE(absl::IsDeadlineExceeded(client.ListNodes({}).status()));
  release_.Fire();
}

TEST_F(CoordinatorClientTest, ReportsRefusedConnection) {
  server_.Stop();
  CoordinatorClient client(server_.address(), Patience(absl::Milliseconds(500)));
  const absl::Status status = client.Connect();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_EQ(status.message(), "Connection refused");
  server_.Start();
  EXPECT_TRUE(CoordinatorClient(server_.address(), {}).Connect().ok());
}

// Like a stopped process: the kernel accepts connections, and they are never read.
class SilentListener {
 public:
  SilentListener() : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    FSDPD_CHECK(bind(socket_, reinterpret_cast<sockaddr*>(&address), size) == 0 && listen(socket_, 16) == 0);
    FSDPD_CHECK(getsockname(socket_, reinterpret_cast<sockaddr*>(&address), &size) == 0);
    port_ = ntohs(address.sin_port);
  }
  ~SilentListener() { close(socket_); }

  std::string address() const { return absl::StrCat("127.0.0.1:", port_); }
  int socket() const { return socket_; }

 private:
  const int socket_;
  int port_ = 0;
};

std::string MakeAuthority(const TempDir& dir) {
  MakeCertificate(dir.File("ca"), "/CN=x");
  std::stringstream pem;
  pem << std::ifstream(dir.File("ca.crt")).rdbuf();
  return pem.str();
}

// Regression: the status was UNAVAILABLE, as for a refused connection. gRPC aborts an attempt after a second
// and reports the reason only in the message, which differs with TLS.
TEST_F(CoordinatorClientTest, SilentListenerIsDeadlineExceeded) {
  const TempDir dir;
  SilentListener silent;
  for (const std::string& trusted : {std::string(), MakeAuthority(dir)}) {
    for (const absl::Duration timeout : {absl::Milliseconds(200), absl::Milliseconds(2500)}) {
      CoordinatorClient client(silent.address(),
                               {timeout, /*connect_timeout=*/absl::Milliseconds(1200), trusted});
      const absl::Status connected = client.Connect();
      EXPECT_TRUE(absl::IsDeadlineExceeded(connected)) << timeout << ": " << connected;
      const absl::Status answered = client.ListNodes({}).status();
      EXPECT_TRUE(absl::IsDeadlineExceeded(answered)) << timeout << ": " << answered;
    }
  }
}

// Regression: `watch` of a coordinator that was stopped after the handshake waited 82 s for keepalives.
TEST_F(CoordinatorClientTest, UnresponsiveCoordinatorIsDeadlineExceeded) {
  server_.on_version = [&](const auto&, auto*) {
    release_.WaitFor(std::chrono::hours(1));
    return grpc::Status::OK;
  };
  CoordinatorClient client(server_.address(), Patience(absl::Milliseconds(300)));
  EXPECT_TRUE(absl::IsDeadlineExceeded(client.Connect()));
  release_.Fire();
}

// A closed connection is a response, so the error is immediate and not DEADLINE_EXCEEDED.
TEST_F(CoordinatorClientTest, ClosedConnectionIsUnavailable) {
  const TempDir dir;
  const std::string trusted = MakeAuthority(dir);
  const SilentListener listener;
  std::thread closer([&listener] {
    for (int taken = 0; (taken = accept(listener.socket(), nullptr, nullptr)) >= 0;) close(taken);
  });
  CoordinatorClient client(listener.address(), {absl::Seconds(3), absl::Seconds(1), trusted});
  const absl::Status connected = client.Connect();
  EXPECT_TRUE(absl::IsUnavailable(connected)) << connected;
  shutdown(listener.socket(), SHUT_RDWR);
  closer.join();
}

TEST_F(CoordinatorClientTest, TriesAllAddressesOfName) {
  SilentListener silent;
  CoordinatorClient client(absl::StrCat("ipv4:", silent.address(), ",", server_.address()),
                           Patience(absl::Milliseconds(2500)));
  EXPECT_TRUE(client.Connect().ok());
}

TEST_F(CoordinatorClientTest, ReportsReadableConnectError) {
  CoordinatorClient unknown("no-such-host.invalid:1", Patience(absl::Milliseconds(500)));
  EXPECT_EQ(unknown.Connect(), absl::UnavailableError("unknown host name"));
}

TEST_F(CoordinatorClientTest, ReadsStreamToEnd) {
  server_.on_logs = [](const v1::TailLogsRequest& request, grpc::ServerContext*,
                       grpc::ServerWriter<v1::TailLogsResponse>* writer) {
    v1::TailLogsResponse line;
    for (int i = 0; i < 3; ++i) {
      line.set_line(request.id());
      writer->Write(line);
    }
    return grpc::Status(grpc::StatusCode::NOT_FOUND, "gone");
  };
  CoordinatorClient client(server_.address(), {});
  v1::TailLogsRequest request;
  request.set_id("j");
  std::string lines;
  EXPECT_TRUE(
      absl::IsNotFound(client.TailLogs(request, &interrupt_, [&](const auto& l) { lines += l.line(); })));
  EXPECT_EQ(lines, "jjj");
}

TEST_F(CoordinatorClientTest, InterruptCancelsStream) {
  server_.on_watch = [&](const auto&, grpc::ServerContext*,
                         grpc::ServerWriter<v1::WatchJobResponse>* writer) {
    writer->Write({});
    release_.WaitFor(std::chrono::hours(1));
    return grpc::Status::OK;
  };
  CoordinatorClient client(server_.address(), {});
  const absl::Status status = client.WatchJob({}, &interrupt_, [&](const auto&) { interrupt_.Fire(); });
  EXPECT_TRUE(absl::IsCancelled(status)) << status;
  release_.Fire();
}

}  // namespace
}  // namespace fsdpd
