#include "coordinator/serve/refused_handshakes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace fsdpd {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Log lines of gRPC 1.51.
TEST(RefusedHandshakes, NameTheMissingPart) {
  const std::string failed = "Handshake failed with fatal error SSL_ERROR_SSL: error:";
  EXPECT_THAT(HandshakeError(failed + "0A000086:SSL routines::certificate verify failed."),
              HasSubstr("not signed by a CA in --tls-client-ca"));
  EXPECT_THAT(HandshakeError(failed + "0A00010B:SSL routines::wrong version number."),
              HasSubstr("does not use TLS"));
  EXPECT_THAT(HandshakeError(failed + "0A000418:SSL routines::tlsv1 alert unknown ca."),
              HasSubstr("does not trust"));
  EXPECT_THAT(HandshakeError(failed + "0A000102:SSL routines::unsupported protocol."),
              HasSubstr("unsupported protocol"));
}

TEST(RefusedHandshakes, IgnoreOtherGrpcLogLines) {
  EXPECT_THAT(HandshakeError("No match found for server name: 127.0.0.1."), IsEmpty());
}

}  // namespace
}  // namespace fsdpd
