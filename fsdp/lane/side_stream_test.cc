#include "fsdp/lane/side_stream.h"

#include <gtest/gtest.h>

#include <string>

namespace fsdpd {
namespace {

TEST(SideStream, DefersWorkToAwait) {
  const auto side_stream = MakeSideStream(std::nullopt);
  std::string done;
  for (const char* name : {"a", "b"}) {
    ASSERT_TRUE(side_stream
                    ->Start([&done, name] {
                      done += name;
                      return absl::OkStatus();
                    })
                    .ok());
  }
  EXPECT_EQ(done, "");
  EXPECT_TRUE(side_stream->Await().ok());
  EXPECT_EQ(done, "ab");
  EXPECT_TRUE(side_stream->Await().ok());
  EXPECT_EQ(done, "ab");
}

TEST(SideStream, AwaitReturnsTheFirstError) {
  const auto side_stream = MakeSideStream(std::nullopt);
  bool ran = false;
  ASSERT_TRUE(side_stream->Start([] { return absl::UnavailableError("a peer is gone"); }).ok());
  ASSERT_TRUE(side_stream
                  ->Start([&ran] {
                    ran = true;
                    return absl::OkStatus();
                  })
                  .ok());
  EXPECT_EQ(side_stream->Await().message(), "a peer is gone");
  EXPECT_FALSE(ran);
  EXPECT_TRUE(side_stream->Await().ok());
}

}  // namespace
}  // namespace fsdpd
