#include "agent/link/coordinator_channel.h"

#include <gtest/gtest.h>

namespace fsdpd {
namespace {

TEST(CoordinatorChannel, CurrentReturnsTheSameChannelUntilRenew) {
  CoordinatorChannel places("127.0.0.1:1", TlsFiles{}, Clock::Real());
  const std::shared_ptr<grpc::Channel> first = *places.Current();
  EXPECT_EQ(*places.Current(), first);
  places.Renew();
  const std::shared_ptr<grpc::Channel> second = *places.Current();
  EXPECT_NE(second, first);
  EXPECT_EQ(*places.Current(), second);
}

}  // namespace
}  // namespace fsdpd
