#include "client/spec/spec_diff.h"

#include <absl/strings/str_cat.h>
#include <gtest/gtest.h>

#include "client/spec/spec_text.h"

namespace fsdpd {
namespace {

// Formats each difference as "field: first | second".
std::string Of(const char* first, const char* second) {
  std::string all;
  const v1::JobSpec a = ParseSpec(first, "a").spec, b = ParseSpec(second, "b").spec;
  for (const FieldDifference& each : DifferencesOf(a, b, a, b)) {
    absl::StrAppend(&all, each.field, ": ", each.first.value_or("-"), " | ", each.second.value_or("-"), "\n");
  }
  return all;
}

TEST(SpecDiff, EqualSpecsHaveNoDifferences) {
  EXPECT_EQ(Of("{name: a, train: {steps: 3}}", "train: {steps: 3}\nname: a\n"), "");
}

TEST(SpecDiff, ListsDifferencesInFieldOrder) {
  EXPECT_EQ(Of("{name: a, model: {preset: tiny}, train: {steps: 3, micro_batch: 2}}",
               "{name: b, model: {preset: tiny}, train: {steps: 4}}"),
            "name: a | b\ntrain.steps: 3 | 4\ntrain.micro_batch: 2 | -\n");
}

TEST(SpecDiff, ComparesListElementsByIndex) {
  EXPECT_EQ(Of("{data: {tokens: [{path: /x}, {path: /y}]}}", "{data: {tokens: [{path: /x}]}}"),
            "data.tokens[1].path: /y | -\n");
  EXPECT_EQ(Of("{optimizer: {adamw: {betas: [0.9, 0.95]}}}", "{optimizer: {adamw: {betas: [0.9, 0.99]}}}"),
            "optimizer.adamw.betas: [0.9, 0.95] | [0.9, 0.99]\n");
}

// Regression: for a run with SGD, eight differences were listed, seven of them for fields that were not
// written.
TEST(SpecDiff, ListsOnlyWrittenFieldsOfUnmatchedMessage) {
  const v1::JobSpec adam = ParseSpec("{name: a}", "a").spec;
  const v1::JobSpec sgd = ParseSpec("{name: a, optimizer: {sgd: {lr: 0.1}}}", "b").spec;
  v1::JobSpec filled_adam = adam, filled_sgd = sgd;
  filled_adam.mutable_optimizer()->mutable_adamw()->set_lr(3e-4);
  filled_adam.mutable_optimizer()->mutable_adamw()->set_weight_decay(0.1);
  filled_sgd.mutable_optimizer()->mutable_sgd()->set_momentum(0.9);
  std::string all;
  for (const FieldDifference& each : DifferencesOf(filled_adam, filled_sgd, adam, sgd))
    absl::StrAppend(&all, each.field, ": ", each.first.value_or("-"), " | ", each.second.value_or("-"), "\n");
  EXPECT_EQ(all, "optimizer.adamw: {} | -\noptimizer.sgd.lr: - | 0.1\n");
}

TEST(SpecDiff, DistinguishesEmptyFromUnsetMessage) {
  EXPECT_EQ(Of("{data: {synthetic: {}}}", "{data: {}}").rfind("data.synthetic", 0), 0u);
}

}  // namespace
}  // namespace fsdpd
