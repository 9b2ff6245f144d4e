#include "client/spec_array.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace fsdpd {
namespace {

using ::testing::ElementsAre;

std::string FaultOf(const std::string& array) {
  return std::string(ArrayOverrides({array}).status().message());
}

TEST(SpecArray, IsEveryCombinationOfTheValues) {
  EXPECT_THAT(ArrayOverrides({"train.seed=1,2", "optimizer.adamw.lr=1e-4,3e-4"}).value(),
              ElementsAre(ElementsAre("train.seed=1", "optimizer.adamw.lr=1e-4"),
                          ElementsAre("train.seed=1", "optimizer.adamw.lr=3e-4"),
                          ElementsAre("train.seed=2", "optimizer.adamw.lr=1e-4"),
                          ElementsAre("train.seed=2", "optimizer.adamw.lr=3e-4")));
  EXPECT_THAT(ArrayOverrides({"a=1"}).value(), ElementsAre(ElementsAre("a=1")));
}

TEST(SpecArray, ACommaWithinAValuePartsNothing) {
  EXPECT_THAT(ArrayOverrides({"b=[0.9, 0.95],[0.9, 0.99]"}).value(),
              ElementsAre(ElementsAre("b=[0.9, 0.95]"), ElementsAre("b=[0.9, 0.99]")));
  EXPECT_THAT(ArrayOverrides({"b='x,y',\"z,[\""}).value(),
              ElementsAre(ElementsAre("b='x,y'"), ElementsAre("b=\"z,[\"")));
}

TEST(SpecArray, IsKnownByTheRequestIdsOfItsJobs) {
  EXPECT_TRUE(IsOfArray("sweep-k3x9q2/0", "sweep-k3x9q2"));
  EXPECT_FALSE(IsOfArray("sweep-k3x9q22/0", "sweep-k3x9q2"));
  EXPECT_FALSE(IsOfArray("sweep-k3x9q2", "sweep-k3x9q2"));
  EXPECT_FALSE(IsOfArray("nightly/2026-11-22", "nightly")) << "a person's own id";
  EXPECT_FALSE(IsOfArray("a/b/0", "a"));
  EXPECT_TRUE(IsOfArray("", ""));
}

TEST(SpecArray, SaysWhatIsWrong) {
  EXPECT_EQ(FaultOf("train.seed"), "'train.seed' is not PATH=VALUE,VALUE");
  EXPECT_EQ(FaultOf("=1,2"), "'=1,2' is not PATH=VALUE,VALUE");
  EXPECT_EQ(FaultOf("a=1,,2"), "'a=1,,2' has a value that is empty");
  EXPECT_EQ(FaultOf("a="), "'a=' has a value that is empty");
  std::string many = "a=0";
  for (int i = 1; i <= 16; ++i) many += "," + std::to_string(i);
  EXPECT_TRUE(ArrayOverrides({many}).ok());
  EXPECT_EQ(ArrayOverrides({many, many}).status().message(), "more than 256 jobs");
}

}  // namespace
}  // namespace fsdpd
