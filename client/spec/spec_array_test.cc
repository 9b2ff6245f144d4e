#include "client/spec/spec_array.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace fsdpd {
namespace {

using ::testing::ElementsAre;

std::string FaultOf(const std::string& array) {
  return std::string(ArrayOverrides({array}).status().message());
}

TEST(SpecArray, IsCartesianProduct) {
  EXPECT_THAT(ArrayOverrides({"train.seed=1,2", "optimizer.adamw.lr=1e-4,3e-4"}).value(),
              ElementsAre(ElementsAre("train.seed=1", "optimizer.adamw.lr=1e-4"),
                          ElementsAre("train.seed=1", "optimizer.adamw.lr=3e-4"),
                          ElementsAre("train.seed=2", "optimizer.adamw.lr=1e-4"),
                          ElementsAre("train.seed=2", "optimizer.adamw.lr=3e-4")));
  EXPECT_THAT(ArrayOverrides({"a=1"}).value(), ElementsAre(ElementsAre("a=1")));
}

TEST(SpecArray, CommaInBracketsOrQuotesDoesNotSplit) {
  EXPECT_THAT(ArrayOverrides({"b=[0.9, 0.95],[0.9, 0.99]"}).value(),
              ElementsAre(ElementsAre("b=[0.9, 0.95]"), ElementsAre("b=[0.9, 0.99]")));
  EXPECT_THAT(ArrayOverrides({"b='x,y',\"z,[\""}).value(),
              ElementsAre(ElementsAre("b='x,y'"), ElementsAre("b=\"z,[\"")));
}

TEST(SpecArray, IsIdentifiedByRequestIds) {
  EXPECT_TRUE(IsInArray("sweep-k3x9q2/0", "sweep-k3x9q2"));
  EXPECT_FALSE(IsInArray("sweep-k3x9q22/0", "sweep-k3x9q2"));
  EXPECT_FALSE(IsInArray("sweep-k3x9q2", "sweep-k3x9q2"));
  EXPECT_FALSE(IsInArray("nightly/2026-11-22", "nightly")) << "a request id of the user";
  EXPECT_FALSE(IsInArray("a/b/0", "a"));
  EXPECT_TRUE(IsInArray("", ""));
}

TEST(SpecArray, RejectsInvalidValues) {
  EXPECT_EQ(FaultOf("train.seed"), "'train.seed' is not PATH=VALUE,VALUE");
  EXPECT_EQ(FaultOf("=1,2"), "'=1,2' is not PATH=VALUE,VALUE");
  EXPECT_EQ(FaultOf("a=1,,2"), "'a=1,,2' has an empty value");
  EXPECT_EQ(FaultOf("a="), "'a=' has an empty value");
  std::string many = "a=0";
  for (int i = 1; i <= 16; ++i) many += "," + std::to_string(i);
  EXPECT_TRUE(ArrayOverrides({many}).ok());
  std::string other = many;
  other[0] = 'b';
  EXPECT_EQ(ArrayOverrides({many, other}).status().message(),
            "'" + other + "': too many jobs (got 289, at most 256); submit several arrays");
}

// Regression: one path replaced the other's values, and the same job was trained twice.
TEST(SpecArray, RejectsOverlappingPaths) {
  const auto fault = [](const std::string& one, const std::string& other) {
    return std::string(ArrayOverrides({one, other}).status().message());
  };
  EXPECT_EQ(fault("train.seed=1,2", "train.seed=3,4"),
            "train.seed is given twice; list all of its values in one --array");
  EXPECT_EQ(fault("train.micro_batch=1", "train.microBatch=2"),
            "train.micro_batch is given twice; list all of its values in one --array");
  EXPECT_EQ(fault("train={seed: 1}", "train.seed=3"), "train and train.seed overlap: one contains the other");
  EXPECT_EQ(fault("data.tokens[0].path=a", "data.tokens=[]"),
            "data.tokens[0].path and data.tokens overlap: one contains the other");
  EXPECT_EQ(fault("train.steps=1", "train.steps_more=3"), "");
}

TEST(SpecArray, RejectsDuplicateValues) {
  EXPECT_EQ(FaultOf("a=1,2,1"), "'a=1,2,1' has the duplicate value 1; each value makes a job");
  EXPECT_EQ(FaultOf("a=1e-4,0.0001"),
            "'a=1e-4,0.0001' has the equal values 1e-4 and 0.0001; each value makes a job");
  EXPECT_EQ(FaultOf("a=x,X"), "");
}

}  // namespace
}  // namespace fsdpd
