#include "coordinator/api/page_token.h"

#include <absl/strings/escaping.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace fsdpd {
namespace {

using ::testing::HasSubstr;

TEST(PageToken, RoundTrips) {
  for (const std::string& mark : {ListMark(""), ListMark("end_time")}) {
    const auto cursor =
        DecodePageToken(EncodePageToken({1234567890123456789, "tiny/llama-k3x9q2"}, mark), mark);
    ASSERT_TRUE(cursor.ok());
    EXPECT_EQ(cursor->unix_nanos, 1234567890123456789);
    EXPECT_EQ(cursor->id, "tiny/llama-k3x9q2");
    EXPECT_EQ(*DecodeEventToken(EncodeEventToken(7, mark), mark), 7);
  }
}

TEST(PageToken, RejectsForeignTokens) {
  for (const char* token : {"x", "!!!", "MS8y", "Mi8xL2E", "MS94L2E", "ZXZlbnRzLy0x", "ZXZlbnRzMi8"}) {
    EXPECT_EQ(DecodePageToken(token).status().code(), absl::StatusCode::kInvalidArgument) << token;
    EXPECT_EQ(DecodeEventToken(token).status().code(), absl::StatusCode::kInvalidArgument) << token;
  }
  EXPECT_THAT(DecodeEventToken(EncodePageToken({1, "a"})).status().message(),
              HasSubstr("not a token of this call"));
}

TEST(PageToken, IsBoundToItsList) {
  const std::string mark = ListMark("end_time");
  EXPECT_NE(mark, ListMark("end_time desc"));
  for (const std::string& token : {EncodePageToken({1, "a"}, mark), EncodePageToken({1, "a"})}) {
    const auto other = DecodePageToken(token, ListMark("end_time desc"));
    EXPECT_THAT(other.status().message(), HasSubstr("another order_by"));
  }
  EXPECT_THAT(DecodeEventToken(EncodeEventToken(1, mark)).status().message(), HasSubstr("another order_by"));
}

// A token made by an older release.
TEST(PageToken, AcceptsTokenOfOlderRelease) {
  EXPECT_EQ(DecodePageToken(absl::WebSafeBase64Escape("1/5/a"))->id, "a");
  EXPECT_EQ(*DecodeEventToken(absl::WebSafeBase64Escape("events/5")), 5);
}

}  // namespace
}  // namespace fsdpd
