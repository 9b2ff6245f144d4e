#include "coordinator/web/http_message.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>

namespace fsdpd {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

TEST(HttpMessage, ParsesHeadAndDecodesQuery) {
  const auto request = ParseHttpRequest(
      "GET /api/GetJob?x=1&q=%7B%22id%22%3a+1%7D HTTP/1.1\r\nhost: a:1\r\nAUTHORIZATION:  Bearer t \r\n"
      "Accept-Encoding: br, gzip\r\nno header\r\n\r\n");
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_FALSE(request->head);
  EXPECT_EQ(request->path, "/api/GetJob");
  EXPECT_EQ(request->query, R"({"id": 1})");
  EXPECT_EQ(request->host, "a:1");
  EXPECT_EQ(request->authorization, "Bearer t");
  EXPECT_TRUE(request->takes_gzip);
}

TEST(HttpMessage, DistinguishesInvalidFromUnsupportedRequests) {
  for (const char* head : {"", "\r\n\r\n", "GET /", "GET / HTTP/2\r\n\r\n", "GET  / HTTP/1.1\r\n\r\n",
                           "GET http://a/ HTTP/1.1\r\n\r\n", "GET /?q=%4 HTTP/1.1\r\n\r\n",
                           "GET /?q=%zz HTTP/1.1\r\n\r\n", "\x16\x03\x01"}) {
    EXPECT_EQ(ParseHttpRequest(head).status().code(), absl::StatusCode::kInvalidArgument) << head;
  }
  for (const char* method : {"POST", "PUT", "DELETE", "OPTIONS", "get"}) {
    const auto refused = ParseHttpRequest(absl::StrCat(method, " / HTTP/1.1\r\n\r\n"));
    EXPECT_EQ(refused.status().code(), absl::StatusCode::kUnimplemented) << method;
  }
}

TEST(HttpMessage, AddsSecurityHeaders) {
  const std::string answer = RenderHttp({}, {200, "text/html", "<p>"});
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(answer, HasSubstr("default-src 'none'; script-src 'self'; style-src 'self';"));
  EXPECT_THAT(answer, HasSubstr("frame-ancestors 'none'\r\n"));
  EXPECT_THAT(answer, HasSubstr("nosniff\r\n"));
  EXPECT_THAT(answer, Not(HasSubstr("unsafe")));
  EXPECT_THAT(answer, EndsWith("Content-Length: 3\r\n\r\n<p>"));
  HttpRequest head;
  head.head = true;
  EXPECT_THAT(RenderHttp(head, {200, "text/html", "<p>"}), EndsWith("Content-Length: 3\r\n\r\n"));
}

TEST(HttpMessage, CompressesLongBodyIfAccepted) {
  const std::string body(100'000, 'x');
  HttpRequest request;
  EXPECT_THAT(RenderHttp(request, {200, "text/plain", body}), EndsWith(body));
  request.takes_gzip = true;
  const std::string answer = RenderHttp(request, {200, "text/plain", body});
  EXPECT_THAT(answer, HasSubstr("Content-Encoding: gzip\r\n"));
  EXPECT_LT(answer.size(), 2000u);
  std::string packed = answer.substr(answer.find("\r\n\r\n") + 4), unpacked(body.size() + 1, '\0');
  z_stream stream = {};
  ASSERT_EQ(inflateInit2(&stream, 15 + 16), Z_OK);
  stream.next_in = reinterpret_cast<Bytef*>(packed.data());
  stream.avail_in = static_cast<uInt>(packed.size());
  stream.next_out = reinterpret_cast<Bytef*>(unpacked.data());
  stream.avail_out = static_cast<uInt>(unpacked.size());
  EXPECT_EQ(inflate(&stream, Z_FINISH), Z_STREAM_END);
  unpacked.resize(stream.total_out);
  inflateEnd(&stream);
  EXPECT_EQ(unpacked, body);
  EXPECT_THAT(RenderHttp(request, {200, "text/plain", "short"}), EndsWith("short"));
}

}  // namespace
}  // namespace fsdpd
