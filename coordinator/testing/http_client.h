// Raw HTTP client for tests, which can send slowly or invalidly.
#pragma once

#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>

namespace fsdpd {

class HttpClient {
 public:
  explicit HttpClient(int port) : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  }
  ~HttpClient() { close(fd_); }

  void Send(const std::string& text) { send(fd_, text.data(), text.size(), MSG_NOSIGNAL); }
  // All bytes until the server closes the connection; "" if it sends none.
  std::string ReadAll() {
    std::string all;
    char bytes[4096];
    for (ssize_t n; (n = recv(fd_, bytes, sizeof bytes, 0)) > 0;) all.append(bytes, static_cast<size_t>(n));
    return all;
  }

  static int PortOf(const std::string& url) {
    int port = 0;
    EXPECT_TRUE(absl::SimpleAtoi(url.substr(url.rfind(':') + 1, url.size() - url.rfind(':') - 2), &port))
        << url;
    return port;
  }
  // Response to one request. Each line of `headers` ends with "\r\n".
  static std::string Get(int port, const std::string& target,
                         const std::string& headers = "Host: localhost\r\n") {
    HttpClient client(port);
    client.Send(absl::StrCat("GET ", target, " HTTP/1.1\r\n", headers, "\r\n"));
    return client.ReadAll();
  }

 private:
  const int fd_;
};

}  // namespace fsdpd
