#include "base/ids.h"

#include <gtest/gtest.h>

#include <set>

namespace fsdpd {
namespace {

TEST(JobId, CarriesTheNameAndDiffersEachTime) {
  std::set<std::string> ids;
  for (int i = 0; i < 1000; ++i) {
    const std::string id = NewJobId("tiny-llama");
    EXPECT_EQ(id.substr(0, 11), "tiny-llama-");
    EXPECT_TRUE(ids.insert(id).second);
  }
}

TEST(Name, AcceptsDnsLabelsOnly) {
  for (const char* good : {"a", "tiny-llama", "llama3-8b", "x9"}) EXPECT_TRUE(CheckName(good).ok()) << good;
  for (const char* bad : {"", "-a", "a-", "A", "a b", "a_b", "9a", "../x", "\xc3\xa9"}) {
    EXPECT_FALSE(CheckName(bad).ok()) << bad;
  }
  EXPECT_FALSE(CheckName(std::string(41, 'a')).ok());
}

}  // namespace
}  // namespace fsdpd
