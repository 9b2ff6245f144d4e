#include "base/net/address.h"

#include <gtest/gtest.h>

namespace fsdpd {
namespace {

TEST(HostPort, RoundTripsAddresses) {
  for (const char* text : {"127.0.0.1:7777", "0.0.0.0:0", "node-0.eu-west-1.example:65535", "my_host:1",
                           "[::]:80", "[fe80::1%eth0]:7778"}) {
    const absl::StatusOr<HostPort> address = ParseHostPort(text);
    ASSERT_TRUE(address.ok()) << address.status();
    EXPECT_EQ(ToString(*address), text);
  }
  EXPECT_EQ(ParseHostPort("[::1]:7777")->host, "::1");
  EXPECT_EQ(ParseHostPort("[::1]:7777")->port, 7777);
}

TEST(HostPort, RejectsLargePorts) {
  EXPECT_EQ(ParseHostPort("127.0.0.1:99999").status().message(),
            "'127.0.0.1:99999' is not HOST:PORT: invalid port (want 0..65535)");
}

TEST(HostPort, RejectsInvalidAddresses) {
  for (const char* text : {"", "nonsense", "host:", ":7777", "host:-1", "host:+1", "host: 80", "host:0x50",
                           "host:65536", "host:4294967297", "::1:7777", "[::1]", "[]:1", "ho st:1",
                           "host/path:1", "host\n:1", "unix:/run/socket", "a:1,b:2"}) {
    EXPECT_EQ(ParseHostPort(text).status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
}

TEST(OwnAddress, OwnAddressCanBeBound) {
  for (const char* host : {"127.0.0.1", "localhost"})
    EXPECT_EQ(CheckOwnAddress(host), absl::OkStatus()) << host;
  EXPECT_EQ(CheckOwnAddress("0.0.0.0").message(),
            "'0.0.0.0' is a wildcard address; use one at which other nodes reach this machine");
  EXPECT_FALSE(CheckOwnAddress("::").ok());
  // Reserved for documentation (RFC 5737), so no machine has it.
  EXPECT_EQ(CheckOwnAddress("203.0.113.9"),
            absl::InvalidArgumentError("'203.0.113.9' is not an address of this machine"));
  EXPECT_EQ(CheckOwnAddress("not a host").code(), absl::StatusCode::kInvalidArgument);
}

TEST(Address, LoopbackIsLocalOnly) {
  for (const char* host : {"127.0.0.1", "127.8.9.1", "::1", "localhost"}) {
    EXPECT_TRUE(IsLoopback({host, 7777})) << host;
  }
  for (const char* host : {"0.0.0.0", "::", "10.0.0.1", "127.0.0.1.example", "::ffff:10.0.0.1", "host"}) {
    EXPECT_FALSE(IsLoopback({host, 7777})) << host;
  }
}

}  // namespace
}  // namespace fsdpd
