#include "coordinator/web/web_server.h"

#include <absl/synchronization/blocking_counter.h>
#include <absl/synchronization/notification.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <list>

#include "coordinator/testing/http_client.h"

namespace fsdpd {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// Answers with path and query.
HttpResponse Echo(const HttpRequest& request, const std::string&) {
  return {200, "text/plain", absl::StrCat(request.path, " ", request.query)};
}

std::unique_ptr<WebServer> Started(WebOptions options, WebServer::Answer answer = Echo) {
  options.listen = "127.0.0.1:0";
  auto server = WebServer::Start(options, std::move(answer));
  EXPECT_TRUE(server.ok()) << server.status();
  return *std::move(server);
}

TEST(WebServer, ServesOnPickedPort) {
  const auto server = Started({});
  EXPECT_EQ(server->url(), absl::StrCat("http://127.0.0.1:", server->port(), "/"));
  EXPECT_THAT(HttpClient::Get(server->port(), "/x?q=%3C"), EndsWith("\r\n\r\n/x <"));
  // The request may arrive in parts.
  HttpClient client(server->port());
  client.Send("GET /y HT");
  client.Send("TP/1.1\r\n\r");
  client.Send("\n");
  EXPECT_THAT(client.ReadAll(), EndsWith("\r\n\r\n/y "));
}

TEST(WebServer, RejectsPlaintextOffLoopback) {
  WebOptions options;
  options.listen = "0.0.0.0:0";
  const auto refused = WebServer::Start(options, Echo);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("use TLS"));
}

TEST(WebServer, ReportsAddressInUse) {
  const auto server = Started({});
  WebOptions options;
  options.listen = absl::StrCat("127.0.0.1:", server->port());
  const auto refused = WebServer::Start(options, Echo);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("cannot serve the web UI at 127.0.0.1:"));
}

TEST(WebServer, RejectsOversizedAndInvalidRequests) {
  const auto server = Started({});
  HttpClient client(server->port());
  client.Send("GET / HTTP/1.1\r\nX: " + std::string(kMaxHeadBytes, 'x'));
  EXPECT_THAT(client.ReadAll(), StartsWith("HTTP/1.1 431 "));
  EXPECT_THAT(HttpClient::Get(server->port(), "nothing"), StartsWith("HTTP/1.1 400 "));
  HttpClient poster(server->port());
  poster.Send("POST / HTTP/1.1\r\n\r\n");
  EXPECT_THAT(poster.ReadAll(), AllOf(StartsWith("HTTP/1.1 405 "), HasSubstr("Allow: GET, HEAD\r\n")));
}

TEST(WebServer, ClosesSilentConnectionAfterHeadTime) {
  WebOptions options;
  options.head_time = absl::Milliseconds(50);
  const auto server = Started(options);
  HttpClient silent(server->port()), slow(server->port());
  slow.Send("GET / HTTP/1.1\r\n");
  EXPECT_EQ(silent.ReadAll(), "");
  EXPECT_EQ(slow.ReadAll(), "");
}

TEST(WebServer, TruncatesResponseAfterExchangeTime) {
  WebOptions options;
  options.exchange_time = absl::Nanoseconds(1);
  const std::string large(16 << 20, 'x');
  const auto server = Started(options, [&](const HttpRequest&, const std::string&) {
    return HttpResponse{200, "text/plain", large};
  });
  const std::string answer = HttpClient::Get(server->port(), "/");
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 200 "));
  EXPECT_LT(answer.size(), large.size());
}

TEST(WebServer, ClosesIdleConnectionForNewRequest) {
  WebOptions options;
  options.head_time = absl::Minutes(10);
  options.max_exchanges = 2;
  const auto server = Started(options);
  HttpClient first(server->port()), second(server->port());
  EXPECT_THAT(HttpClient::Get(server->port(), "/x"), EndsWith("/x "));
  EXPECT_EQ(first.ReadAll(), "");
}

// Regression: the new client and the one that had waited longest saw a closed connection.
TEST(WebServer, Returns503WhileAllConnectionsAreBusy) {
  WebOptions options;
  options.max_exchanges = 2;
  absl::BlockingCounter asked(2);
  absl::Notification answered;
  const auto server = Started(options, [&](const HttpRequest& request, const std::string& from) {
    if (request.path == "/long") {
      asked.DecrementCount();
      answered.WaitForNotification();
    }
    return Echo(request, from);
  });
  HttpClient first(server->port()), second(server->port());
  for (HttpClient* each : {&first, &second}) each->Send("GET /long HTTP/1.1\r\n\r\n");
  asked.Wait();
  for (int i = 0; i < 3; ++i) {
    EXPECT_THAT(HttpClient::Get(server->port(), "/x"),
                AllOf(StartsWith("HTTP/1.1 503 Service Unavailable\r\n"), HasSubstr("\r\nRetry-After: 2\r\n"),
                      HasSubstr("\"reason\":\"PAGE_BUSY\""), HasSubstr("retry in a few seconds")));
  }
  std::list<HttpClient> silent;
  for (int i = 0; i < 20; ++i) silent.emplace_back(server->port());
  EXPECT_EQ(silent.front().ReadAll(), "") << "more than kMaxRejected are closed silently";
  answered.Notify();
  for (HttpClient* each : {&first, &second}) EXPECT_THAT(each->ReadAll(), EndsWith("/long "));
  EXPECT_THAT(HttpClient::Get(server->port(), "/x"), EndsWith("/x "));
}

// Regression: the server joined the oldest connection, which waited for its response, and served no other
// client meanwhile.
TEST(WebServer, ClosesIdleConnectionWhenOutOfDescriptors) {
  WebOptions options;
  options.head_time = absl::Minutes(10);
  absl::Notification first_asked, last_asked, answered;
  const auto server = Started(options, [&](const HttpRequest& request, const std::string& from) {
    if (request.path == "/first") first_asked.Notify();
    if (request.path == "/last") last_asked.Notify();
    if (request.path != "/x") answered.WaitForNotification();
    return Echo(request, from);
  });
  HttpClient first(server->port());
  first.Send("GET /first HTTP/1.1\r\n\r\n");
  first_asked.WaitForNotification();
  HttpClient silent(server->port()), last(server->port());
  last.Send("GET /last HTTP/1.1\r\n\r\n");
  last_asked.WaitForNotification();  // The silent one was accepted before.
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const int free = dup(STDIN_FILENO);
  ASSERT_GE(free, 0);
  close(free);
  rlimit tight = before;
  tight.rlim_cur = static_cast<rlim_t>(free) + 1;  // The client's own socket.
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &tight), 0);
  EXPECT_THAT(HttpClient::Get(server->port(), "/x"), EndsWith("/x "));
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(silent.ReadAll(), "");
  answered.Notify();
  EXPECT_THAT(first.ReadAll(), EndsWith("/first "));
  EXPECT_THAT(last.ReadAll(), EndsWith("/last "));
}

TEST(WebServer, DestructorClosesConnections) {
  WebOptions options;
  options.head_time = absl::Minutes(10);
  auto server = Started(options);
  HttpClient client(server->port());
  EXPECT_THAT(HttpClient::Get(server->port(), "/x"), EndsWith("/x "));
  server.reset();
  EXPECT_EQ(client.ReadAll(), "");
}

}  // namespace
}  // namespace fsdpd
