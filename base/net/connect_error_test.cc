#include "base/net/connect_error.h"

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace fsdpd {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;

// As wrapped by gRPC 1.51.
std::string Wrapped(const std::string& what) {
  return absl::StrCat("failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:7777: ", what);
}

TEST(ConnectFault, KeepsConnectionRefused) {
  for (const OwnTls own : {OwnTls::kNone, OwnTls::kTrust, OwnTls::kCertificate}) {
    EXPECT_EQ(ConnectErrorText(Wrapped("Connection refused"), own), "Connection refused");
    EXPECT_TRUE(NothingListens(ConnectErrorText(Wrapped("Connection refused"), own)));
    EXPECT_TRUE(NothingListens(ConnectErrorText("DNS resolution failed for x:1: ...", own)));
  }
}

TEST(ConnectFault, NamesTheFlagAndTheErrorIdForMismatches) {
  struct {
    const char* what;
    OwnTls own;
    const char* said;
    const char* id;
  } const cases[] = {
      {"Socket closed", OwnTls::kNone, "set --coordinator-ca [", "TLS_REQUIRED"},
      {"Socket closed", OwnTls::kCertificate, "--tls-client-ca", "CONNECTION_CLOSED"},
      {"Connection reset by peer", OwnTls::kCertificate, "--tls-client-ca", "CONNECTION_CLOSED"},
      {"SSL_ERROR_SSL: error:0A000086:SSL routines::certificate verify failed", OwnTls::kTrust,
       "is not signed by a CA in --coordinator-ca", "UNTRUSTED_CERTIFICATE"},
      {"SSL_ERROR_SSL: error:0A00010B:SSL routines::wrong version number", OwnTls::kTrust,
       "drop --coordinator-ca", "TLS_NOT_SUPPORTED"},
      {"SSL_ERROR_SSL: error:0A00010B:SSL routines::wrong version number", OwnTls::kCertificate, "--insecure",
       "TLS_NOT_SUPPORTED"},
      {"Peer name 127.0.0.1 is not in peer certificate", OwnTls::kTrust,
       "Peer name 127.0.0.1 is not in peer certificate): connect to a name that it has",
       "SERVER_NAME_MISMATCH"},
      {"Handshake read failed", OwnTls::kCertificate, "does not answer", "NOT_A_COORDINATOR"},
  };
  for (const auto& each : cases) {
    const std::string words = ConnectErrorText(Wrapped(each.what), each.own);
    EXPECT_THAT(words, AllOf(HasSubstr(each.said), EndsWith(absl::StrCat(" [", each.id, "]")),
                             Not(HasSubstr("last error"))));
    EXPECT_FALSE(NothingListens(words)) << words;
  }
}

TEST(ConnectFault, ClassifiesMessages) {
  EXPECT_EQ(ConnectErrorOf(Wrapped("Socket closed")), ConnectError::kClosedOnConnect);
  EXPECT_EQ(ConnectErrorOf("Socket closed"), ConnectError::kClosed);
  EXPECT_EQ(ConnectErrorOf(Wrapped("SSL_ERROR_SSL: sslv3 alert bad certificate")),
            ConnectError::kAlertOnConnect);
  EXPECT_EQ(ConnectErrorOf(Wrapped("SSL routines::certificate verify failed")),
            ConnectError::kUntrustedCertificate);
  EXPECT_EQ(ConnectErrorOf(Wrapped("Connection refused")), ConnectError::kOther);
}

TEST(ConnectFault, DoesNotExplainBrokenStreams) {
  EXPECT_EQ(ConnectErrorText("Socket closed", OwnTls::kCertificate), "Socket closed");
}

}  // namespace
}  // namespace fsdpd
