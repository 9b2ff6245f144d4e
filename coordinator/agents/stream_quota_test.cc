#include "coordinator/agents/stream_quota.h"

#include <gmock/gmock.h>

namespace fsdpd {
namespace {

using ::testing::HasSubstr;

TEST(StreamQuota, LimitsStreamsPerCertificate) {
  StreamQuota quota;
  for (int i = 0; i < kMaxStreamsPerNode; ++i) ASSERT_TRUE(quota.Take("s2", kMaxStreamsPerNode).ok());
  for (int i = 0; i < kMaxAgentStreams; ++i) {
    const absl::Status refused = quota.Take("s2", kMaxStreamsPerNode);
    ASSERT_TRUE(absl::IsResourceExhausted(refused)) << refused;
    ASSERT_THAT(refused.message(), HasSubstr("certificate of 's2'"));
  }
  EXPECT_TRUE(quota.Take("node-0", kMaxStreamsPerNode).ok());
  quota.Release("s2");
  EXPECT_TRUE(quota.Take("s2", kMaxStreamsPerNode).ok());
}

TEST(StreamQuota, LimitsTotal) {
  StreamQuota quota;
  for (int i = 0; i < kMaxAgentStreams; ++i) ASSERT_TRUE(quota.Take("", kMaxAgentStreams + 1).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(quota.Take("node-0", 1)));
  quota.Release("");
  EXPECT_TRUE(quota.Take("node-0", 1).ok());
}

}  // namespace
}  // namespace fsdpd
