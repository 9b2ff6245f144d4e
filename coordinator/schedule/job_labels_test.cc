#include "coordinator/schedule/job_labels.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace fsdpd {
namespace {

using ::testing::HasSubstr;

Labels Of(const std::vector<std::pair<std::string, std::string>>& pairs) {
  Labels labels;
  for (const auto& [key, value] : pairs) {
    v1::Label* label = labels.Add();
    label->set_key(key);
    label->set_value(value);
  }
  return labels;
}

TEST(JobLabels, SortsAndValidatesLikeKubernetes) {
  const auto sorted = CheckedLabels(Of({{"team", "a"}, {"example.com/stage", "test"}, {"empty", ""}}));
  ASSERT_TRUE(sorted.ok()) << sorted.status();
  EXPECT_EQ((*sorted)[0].key(), "empty");
  EXPECT_EQ((*sorted)[2].key(), "team");
  for (const char* key : {"", "-a", "a-", "a b", "Example.com/x", "a/b/c", "/a", "a/"})
    EXPECT_TRUE(absl::IsInvalidArgument(CheckedLabels(Of({{key, "x"}})).status())) << key;
  for (const char* value : {"-a", "a b", "a,b", "a=b"})
    EXPECT_TRUE(absl::IsInvalidArgument(CheckedLabels(Of({{"k", value}})).status())) << value;
  EXPECT_FALSE(CheckedLabels(Of({{std::string(64, 'k'), "x"}})).ok());
  EXPECT_FALSE(CheckedLabels(Of({{"k", std::string(64, 'v')}})).ok());
  EXPECT_THAT(CheckedLabels(Of({{"k", "a"}, {"k", "b"}})).status().message(), HasSubstr("duplicate key 'k'"));
  Labels many;
  for (int i = 0; i <= kMaxLabels; ++i) many.Add()->set_key("k" + std::to_string(i));
  EXPECT_THAT(CheckedLabels(many).status().message(), HasSubstr("at most 64"));
}

}  // namespace
}  // namespace fsdpd
