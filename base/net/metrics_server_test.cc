#include "base/net/metrics_server.h"

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <vector>

namespace fsdpd {
namespace {

UniqueFd Connect(const std::string& endpoint) {
  const HostPort at = ParseHostPort(endpoint).value();
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(at.port));
  EXPECT_EQ(inet_pton(AF_INET, at.host.c_str(), &address.sin_addr), 1);
  UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  return fd;
}

void Say(const UniqueFd& fd, const std::string& text) {
  EXPECT_EQ(send(fd.get(), text.data(), text.size(), MSG_NOSIGNAL), static_cast<ssize_t>(text.size()));
}

std::string Hear(const UniqueFd& fd) {
  std::string answer;
  char bytes[4096];
  for (ssize_t n; (n = recv(fd.get(), bytes, sizeof bytes, 0)) > 0;)
    answer.append(bytes, static_cast<size_t>(n));
  return answer;
}

std::string Ask(const std::string& endpoint, const std::string& request) {
  const UniqueFd fd = Connect(endpoint);
  Say(fd, request);
  return Hear(fd);
}

std::unique_ptr<MetricsServer> Serve(std::string page) {
  return MetricsServer::Start("127.0.0.1:0", [page = std::move(page)] { return page; }).value();
}

TEST(MetricsServer, AnswersDespiteSlowConnections) {
  const auto server = Serve("fsdpd_up 1\n");
  std::vector<UniqueFd> slow;
  for (int i = 0; i < 200; ++i) {
    slow.push_back(Connect(server->endpoint()));
    Say(slow.back(), "GET /metr");
  }
  const std::string answer = Ask(server->endpoint(), "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_TRUE(absl::StartsWith(answer, "HTTP/1.1 200 OK\r\n")) << answer;
  EXPECT_TRUE(absl::EndsWith(answer, "\r\n\r\nfsdpd_up 1\n")) << answer;
  EXPECT_EQ(Hear(slow.front()), "") << "the oldest made room";
}

TEST(MetricsServer, SendsLargePages) {
  const std::string page(16 << 20, 'x');
  const auto server = Serve(page);
  const UniqueFd never_reads = Connect(server->endpoint());
  Say(never_reads, "GET /metrics HTTP/1.1\r\n\r\n");
  const std::string answer = Ask(server->endpoint(), "GET /metrics?x=1 HTTP/1.1\r\n\r\n");
  EXPECT_TRUE(absl::EndsWith(answer, "\r\n\r\n" + page));
}

TEST(MetricsServer, ReadsRequestsByteByByte) {
  const auto server = Serve("page");
  const UniqueFd fd = Connect(server->endpoint());
  for (const char c : std::string("GET /metrics HTTP/1.0\r\n\r\n")) Say(fd, std::string(1, c));
  EXPECT_TRUE(absl::EndsWith(Hear(fd), "page"));
}

TEST(MetricsServer, RejectsInvalidRequests) {
  const auto server = Serve("page");
  EXPECT_TRUE(absl::StartsWith(Ask(server->endpoint(), "GET / HTTP/1.1\r\n\r\n"), "HTTP/1.1 404 "));
  EXPECT_TRUE(absl::StartsWith(Ask(server->endpoint(), "POST /metrics HTTP/1.1\r\n\r\n"), "HTTP/1.1 405 "));
  EXPECT_TRUE(absl::StartsWith(Ask(server->endpoint(), "\x16\x03\x01 hello\n\n"), "HTTP/1.1 400 "));
  EXPECT_TRUE(absl::StartsWith(Ask(server->endpoint(), std::string(9 << 10, 'a')), "HTTP/1.1 431 "));
  const std::string head = Ask(server->endpoint(), "HEAD /metrics HTTP/1.1\r\n\r\n");
  EXPECT_TRUE(absl::StrContains(head, "Content-Length: 4\r\n") && absl::EndsWith(head, "\r\n\r\n")) << head;
}

TEST(MetricsServer, ReportsListenErrors) {
  const auto server = Serve("page");
  const absl::Status taken = MetricsServer::Start(server->endpoint(), [] { return ""; }).status();
  EXPECT_EQ(taken.code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(absl::StrContains(taken.message(), "Address already in use")) << taken;
  EXPECT_EQ(MetricsServer::Start("127.0.0.1:99999", [] { return ""; }).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace fsdpd
