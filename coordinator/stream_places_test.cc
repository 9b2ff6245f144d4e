#include "coordinator/stream_places.h"

#include <gmock/gmock.h>

namespace fsdpd {
namespace {

using ::testing::HasSubstr;

TEST(StreamPlaces, LimitsStreamsPerCertificate) {
  StreamPlaces places;
  for (int i = 0; i < kMaxStreamsPerNode; ++i) ASSERT_TRUE(places.Take("s2", kMaxStreamsPerNode).ok());
  for (int i = 0; i < kMaxAgentStreams; ++i) {
    const absl::Status refused = places.Take("s2", kMaxStreamsPerNode);
    ASSERT_TRUE(absl::IsResourceExhausted(refused)) << refused;
    ASSERT_THAT(refused.message(), HasSubstr("certificate of 's2'"));
  }
  EXPECT_TRUE(places.Take("node-0", kMaxStreamsPerNode).ok());
  places.Release("s2");
  EXPECT_TRUE(places.Take("s2", kMaxStreamsPerNode).ok());
}

TEST(StreamPlaces, LimitsTotal) {
  StreamPlaces places;
  for (int i = 0; i < kMaxAgentStreams; ++i) ASSERT_TRUE(places.Take("", kMaxAgentStreams + 1).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(places.Take("node-0", 1)));
  places.Release("");
  EXPECT_TRUE(places.Take("node-0", 1).ok());
}

}  // namespace
}  // namespace fsdpd
