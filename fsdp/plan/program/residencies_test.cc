#include "fsdp/plan/program/residencies.h"

#include <gtest/gtest.h>

#include <string>

namespace fsdpd {
namespace {

// Units with these counts of buckets.
Layout Units(const std::vector<int>& buckets) {
  Layout layout;
  for (size_t u = 0; u < buckets.size(); ++u) {
    UnitLayout unit;
    for (int i = 0; i < buckets[u]; ++i) {
      unit.buckets.push_back(static_cast<int>(layout.buckets.size()));
      layout.buckets.emplace_back();
    }
    layout.units.push_back(unit);
  }
  return layout;
}

// "unit first-last", space-separated.
std::string Text(const std::vector<Residency>& residencies) {
  std::string text;
  for (const Residency& r : residencies) {
    text +=
        " " + std::to_string(r.unit) + ":" + std::to_string(r.first_pass) + "-" + std::to_string(r.last_pass);
  }
  return text;
}

std::string Text(const std::vector<PlannedGather>& gathers) {
  std::string text;
  for (const PlannedGather& g : gathers) {
    text += " " + std::to_string(g.bucket) + "@" + std::to_string(g.from_pass);
  }
  return text;
}

TEST(Residencies, UnitStaysWhileNextPassNeedsIt) {
  // Passes of a micro-batch: forward 0 1, both of 2, backward 1 0.
  EXPECT_EQ(Text(ListResidencies(Units({1, 1, 1}), TrainingSchedule(3, 2), false)),
            " 0:0-0 1:1-1 2:2-2 1:3-3 0:4-5 1:6-6 2:7-7 1:8-8 0:9-9");
  EXPECT_EQ(Text(ListResidencies(Units({1, 1, 1}), EvaluationSchedule(3), false)), " 0:0-0 1:1-1 2:2-2");
}

TEST(Residencies, KeepGatheredStaysFromFirstToLastUse) {
  EXPECT_EQ(Text(ListResidencies(Units({1, 1, 1}), TrainingSchedule(3, 2), true)), " 0:0-9 1:1-8 2:2-7");
}

// Like an embedding: gathered for the forward of each micro-batch, and for a borrower.
TEST(Residencies, OmitsBackwardThatDoesNotReadParameters) {
  Layout layout = Units({1, 1, 1});
  layout.units[0].backward_reads = false;
  EXPECT_EQ(Text(ListResidencies(layout, TrainingSchedule(3, 2), false)),
            " 0:0-0 1:1-1 2:2-2 1:3-3 0:5-5 1:6-6 2:7-7 1:8-8");
  EXPECT_EQ(Text(ListResidencies(layout, TrainingSchedule(3, 2), true)), " 0:0-5 1:1-8 2:2-7");
  layout.units[2].borrows = 0;
  EXPECT_EQ(Text(ListResidencies(layout, TrainingSchedule(3, 1), false)), " 0:0-0 1:1-1 0:2-2 2:2-2 1:3-3");
}

TEST(Residencies, GathersLenderForBorrower) {
  Layout layout = Units({1, 1, 1});
  layout.units[2].borrows = 0;
  EXPECT_EQ(Text(ListResidencies(layout, TrainingSchedule(3, 1), false)),
            " 0:0-0 1:1-1 0:2-2 2:2-2 1:3-3 0:4-4");
  EXPECT_EQ(Text(ListResidencies(layout, EvaluationSchedule(3), true)), " 0:0-2 1:1-1 2:2-2");
}

TEST(Residencies, MergesAdjacentLenderAndBorrower) {
  Layout layout = Units({1, 1});
  layout.units[1].borrows = 0;
  EXPECT_EQ(Text(ListResidencies(layout, TrainingSchedule(2, 1), false)), " 0:0-2 1:1-1");
}

TEST(Residencies, GathersWaitForPrefetchBound) {
  const Layout layout = Units({1, 1, 1});
  const auto residencies = ListResidencies(layout, TrainingSchedule(3, 1), false);
  EXPECT_EQ(Text(PlanGathers(layout, residencies, {10, 10, 10}, 0)), " 0@0 1@1 2@2 1@3 0@4");
  EXPECT_EQ(Text(PlanGathers(layout, residencies, {10, 10, 10}, 9)), " 0@0 1@1 2@2 1@3 0@4");
  EXPECT_EQ(Text(PlanGathers(layout, residencies, {10, 10, 10}, 10)), " 0@0 1@0 2@1 1@2 0@3");
  // Unit 1 is released after pass 1, and unit 0 waits behind it although it would fit.
  EXPECT_EQ(Text(PlanGathers(layout, residencies, {10, 10, 10}, 100)), " 0@0 1@0 2@0 1@2 0@1");
}

TEST(Residencies, BoundsEachBucketSeparately) {
  const Layout layout = Units({1, 2});
  const auto residencies = ListResidencies(layout, EvaluationSchedule(2), false);
  EXPECT_EQ(Text(PlanGathers(layout, residencies, {10, 4, 6}, 4)), " 0@0 1@0 2@1");
}

}  // namespace
}  // namespace fsdpd
