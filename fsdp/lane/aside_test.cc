#include "fsdp/lane/aside.h"

#include <gtest/gtest.h>

#include <string>

namespace fsdpd {
namespace {

TEST(Aside, DefersWorkToAwait) {
  const auto aside = MakeAside(std::nullopt);
  std::string done;
  for (const char* name : {"a", "b"}) {
    ASSERT_TRUE(aside
                    ->Start([&done, name] {
                      done += name;
                      return absl::OkStatus();
                    })
                    .ok());
  }
  EXPECT_EQ(done, "");
  EXPECT_TRUE(aside->Await().ok());
  EXPECT_EQ(done, "ab");
  EXPECT_TRUE(aside->Await().ok());
  EXPECT_EQ(done, "ab");
}

TEST(Aside, AwaitReturnsTheFirstError) {
  const auto aside = MakeAside(std::nullopt);
  bool ran = false;
  ASSERT_TRUE(aside->Start([] { return absl::UnavailableError("a peer is gone"); }).ok());
  ASSERT_TRUE(aside
                  ->Start([&ran] {
                    ran = true;
                    return absl::OkStatus();
                  })
                  .ok());
  EXPECT_EQ(aside->Await().message(), "a peer is gone");
  EXPECT_FALSE(ran);
  EXPECT_TRUE(aside->Await().ok());
}

}  // namespace
}  // namespace fsdpd
