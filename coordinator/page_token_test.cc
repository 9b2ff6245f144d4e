#include "coordinator/page_token.h"

#include <gtest/gtest.h>

namespace fsdpd {
namespace {

TEST(PageToken, ComesBackAsItWas) {
  const auto cursor = DecodePageToken(EncodePageToken({1234567890123456789, "tiny-llama-k3x9q2"}));
  ASSERT_TRUE(cursor.ok());
  EXPECT_EQ(cursor->create_unix_nanos, 1234567890123456789);
  EXPECT_EQ(cursor->id, "tiny-llama-k3x9q2");
}

TEST(PageToken, RefusesWhatItDidNotMake) {
  for (const char* token : {"x", "!!!", "MS8y", "Mi8xL2E", "MS94L2E"}) {
    EXPECT_EQ(DecodePageToken(token).status().code(), absl::StatusCode::kInvalidArgument) << token;
  }
}

}  // namespace
}  // namespace fsdpd
