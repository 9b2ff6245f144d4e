#include "coordinator/store/leadership.h"

#include <absl/time/clock.h>
#include <gtest/gtest.h>

#include <future>

#include "coordinator/testing/etcd_server.h"

namespace fsdpd {
namespace {

class LeadershipTest : public ::testing::Test {
 protected:
  LeadershipTest() {
    EtcdOptions options;
    options.members = {server_.address()};
    options.attempt = absl::Milliseconds(600);
    client_ = *EtcdClient::Make(options, absl::Now());
  }
  std::unique_ptr<Leadership> TryTake(
      const std::string& address, std::function<void()> lost = [] {},
      absl::Duration lease = absl::Seconds(60)) {
    auto taken = Leadership::TryTake(client_.get(), {"/fsdpd/", address, lease}, std::move(lost));
    EXPECT_TRUE(taken.ok()) << taken.status();
    return taken.ok() ? *std::move(taken) : nullptr;
  }

  EtcdServer server_;
  std::unique_ptr<EtcdClient> client_;
};

TEST_F(LeadershipTest, HasOneLeaderUntilReleased) {
  EXPECT_EQ(*Leadership::Leader(client_.get(), "/fsdpd/"), "");
  auto first = TryTake("one:1");
  ASSERT_NE(first, nullptr);
  EXPECT_TRUE(first->held());
  EXPECT_EQ(TryTake("two:2"), nullptr);
  EXPECT_EQ(*Leadership::Leader(client_.get(), "/fsdpd/"), "one:1");
  const int64_t generation = first->generation();
  first.reset();
  const auto second = TryTake("two:2");
  ASSERT_NE(second, nullptr) << "the destructor released the lease";
  EXPECT_GT(second->generation(), generation);
  EXPECT_LT(second->generation(), int64_t{1} << 31) << "stream generations have 31 bits for it";
  EXPECT_EQ(*Leadership::Leader(client_.get(), "/fsdpd/"), "two:2");
}

TEST_F(LeadershipTest, RenewsLease) {
  const auto leadership = TryTake(
      "one:1", [] {}, absl::Seconds(2));
  ASSERT_NE(leadership, nullptr);
  const absl::Time begin = Clock::Real()->Now();
  while (Clock::Real()->Now() < begin + absl::Seconds(5)) {
    ASSERT_TRUE(leadership->held());
    absl::SleepFor(absl::Milliseconds(50));
  }
  EXPECT_EQ(TryTake("two:2"), nullptr);
}

TEST_F(LeadershipTest, EndsIfEtcdIsSilentForOneLease) {
  std::promise<void> lost;
  const auto leadership = TryTake(
      "one:1", [&] { lost.set_value(); }, absl::Seconds(2));
  ASSERT_NE(leadership, nullptr);
  server_.Pause();
  lost.get_future().wait();
  EXPECT_FALSE(leadership->held());
  server_.Continue();
}

TEST_F(LeadershipTest, CallsLostOnce) {
  std::promise<void> lost;
  const auto first = TryTake("one:1", [&] { lost.set_value(); });
  ASSERT_NE(first, nullptr);
  first->Lose("test");
  lost.get_future().wait();
  EXPECT_FALSE(first->held());
  first->Lose("again");  // No second call.
}

}  // namespace
}  // namespace fsdpd
