#include "fsdp/comm/store.h"

#include <gtest/gtest.h>

#include <thread>

namespace fsdpd {
namespace {

TEST(LocalStore, ReturnsValuesWithNulBytes) {
  LocalStore store;
  const std::string value("a\0b", 3);
  ASSERT_TRUE(store.Set("k", value).ok());
  EXPECT_EQ(*store.Get("k", absl::ZeroDuration()), value);
}

TEST(LocalStore, GetWaitsForTheKey) {
  LocalStore store;
  std::thread writer([&] {
    ASSERT_TRUE(store.Set("other", "x").ok());
    ASSERT_TRUE(store.Set("late", "value").ok());
  });
  EXPECT_EQ(*store.Get("late", absl::InfiniteDuration()), "value");
  writer.join();
}

TEST(LocalStore, TimeoutNamesTheKey) {
  LocalStore store;
  const auto result = store.Get("never", absl::Milliseconds(5));
  EXPECT_EQ(result.status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_NE(result.status().ToString().find("never"), std::string::npos);
}

TEST(GetFrom, TimeoutNamesTheRank) {
  LocalStore store;
  const auto result = GetFrom(&store, 7, "never", absl::Milliseconds(5));
  EXPECT_EQ(result.status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(result.status().message(),
            "rank 7 did not answer and may be gone: key never: not set within 5ms");
  ASSERT_TRUE(store.Set("k", "one").ok());
  EXPECT_EQ(*GetFrom(&store, 7, "k", absl::ZeroDuration()), "one");
}

TEST(LocalStore, RefusesADifferentValue) {
  LocalStore store;
  ASSERT_TRUE(store.Set("k", "one").ok());
  EXPECT_TRUE(store.Set("k", "one").ok());
  EXPECT_EQ(store.Set("k", "two").code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(*store.Get("k", absl::ZeroDuration()), "one");
}

}  // namespace
}  // namespace fsdpd
