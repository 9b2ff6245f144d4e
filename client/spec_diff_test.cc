#include "client/spec_diff.h"

#include <absl/strings/str_cat.h>
#include <gtest/gtest.h>

#include "client/spec_text.h"

namespace fsdpd {
namespace {

// "field: first | second" of each.
std::string Of(const char* first, const char* second) {
  std::string all;
  for (const FieldDifference& each : DifferencesOf(ParseSpec(first, "a").spec, ParseSpec(second, "b").spec)) {
    absl::StrAppend(&all, each.field, ": ", each.first.value_or("-"), " | ", each.second.value_or("-"), "\n");
  }
  return all;
}

TEST(SpecDiff, EqualSpecsHaveNoDifference) {
  EXPECT_EQ(Of("{name: a, train: {steps: 3}}", "train: {steps: 3}\nname: a\n"), "");
}

TEST(SpecDiff, NamesEachFieldThatDiffersInTheOrderOfTheSpec) {
  EXPECT_EQ(Of("{name: a, model: {preset: tiny}, train: {steps: 3, micro_batch: 2}}",
               "{name: b, model: {preset: tiny}, train: {steps: 4}}"),
            "name: a | b\ntrain.steps: 3 | 4\ntrain.micro_batch: 2 | -\n");
}

TEST(SpecDiff, ElementsOfListsAreComparedByPlace) {
  EXPECT_EQ(Of("{data: {tokens: [{path: /x}, {path: /y}]}}", "{data: {tokens: [{path: /x}]}}"),
            "data.tokens[1].path: /y | -\n");
  EXPECT_EQ(Of("{optimizer: {adamw: {betas: [0.9, 0.95]}}}", "{optimizer: {adamw: {betas: [0.9, 0.99]}}}"),
            "optimizer.adamw.betas: [0.9, 0.95] | [0.9, 0.99]\n");
}

TEST(SpecDiff, OneThatIsSetAndEmptyIsNotOneThatIsNotSet) {
  EXPECT_EQ(Of("{data: {synthetic: {}}}", "{data: {}}").rfind("data.synthetic", 0), 0u);
}

}  // namespace
}  // namespace fsdpd
