#include "coordinator/agents/step_history.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>

#include "base/seeds.h"

namespace fsdpd {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// The answer of a node that has steps first..last of an attempt.
void Have(NodeSteps* node, int attempt, int64_t began, int64_t first, int64_t last) {
  v1::StepSegment& segment = node->segments.emplace_back();
  segment.set_attempt(attempt);
  segment.set_began(began);
  segment.set_first(first);
  segment.set_last(last);
}

void Tell(NodeSteps* node, int attempt, int64_t first, int64_t last) {
  for (int64_t step = first; step <= last; ++step) {
    v1::StepRecord& record = node->records.emplace_back();
    record.set_step(step);
    record.set_attempt(attempt);
  }
}

StepQuery All(int limit = 1000) {
  StepQuery query;
  query.last = 1'000'000;
  query.limit = limit;
  return query;
}

std::string Text(const v1::ListStepsResponse& response) {
  std::string text;
  for (const v1::StepRecord& step : response.steps())
    text += std::to_string(step.attempt()) + ":" + std::to_string(step.step()) + " ";
  for (const auto& missing : response.missing())
    text += "missing " + std::to_string(missing.first()) + "-" + std::to_string(missing.last()) + " ";
  return text + "next " + std::to_string(response.next_step());
}

TEST(StepHistory, RunConsistsOfNewestAttempts) {
  std::vector<NodeSteps> nodes(2);
  Have(&nodes[0], 1, 1, 1, 4);
  Tell(&nodes[0], 1, 1, 4);
  Have(&nodes[1], 2, 3, 3, 5);
  Tell(&nodes[1], 2, 3, 5);
  EXPECT_EQ(Text(JoinSteps(All(), {}, nodes)), "1:1 1:2 2:3 2:4 2:5 next 0");
  // It resumed before steps that it has not repeated.
  Have(&nodes[0], 3, 2, 2, 2);
  nodes[0].records.pop_back(), nodes[0].records.pop_back(), nodes[0].records.pop_back();
  Tell(&nodes[0], 3, 2, 2);
  EXPECT_EQ(Text(JoinSteps(All(), {}, nodes)), "1:1 3:2 next 0");
}

TEST(StepHistory, ShowsWholeAttempt) {
  std::vector<NodeSteps> nodes(1);
  Have(&nodes[0], 1, 3, 3, 6);
  Tell(&nodes[0], 1, 3, 6);
  StepQuery query = All();
  query.attempt = 1;
  EXPECT_EQ(Text(JoinSteps(query, {}, nodes)), "1:3 1:4 1:5 1:6 next 0");
}

TEST(StepHistory, ReportsMissingSteps) {
  std::vector<NodeSteps> nodes(2);
  // Attempt 1 ran elsewhere; the start of attempt 2 is no longer stored, and a part of it is missing.
  Have(&nodes[0], 2, 11, 15, 18);
  Have(&nodes[0], 2, 11, 21, 22);
  Tell(&nodes[0], 2, 15, 18);
  Tell(&nodes[0], 2, 21, 22);
  const std::string kept = "2:15 2:16 2:17 2:18 2:21 2:22 ";
  EXPECT_EQ(Text(JoinSteps(All(), {1, 0}, nodes)), kept + "missing 1-14 missing 19-20 next 0");
  EXPECT_EQ(Text(JoinSteps(All(), {1, 25}, nodes)), kept + "missing 1-14 missing 19-20 missing 23-25 next 0");
  // The run started from another job's checkpoint at an unknown step: attempt 2 is the first known one.
  EXPECT_EQ(Text(JoinSteps(All(), {0, 0}, nodes)), kept + "missing 11-14 missing 19-20 next 0");
  StepQuery some = All();
  some.first = 16, some.last = 20;
  std::vector<NodeSteps> asked(1);
  asked[0].segments = nodes[0].segments;
  Tell(&asked[0], 2, 16, 18);
  EXPECT_EQ(Text(JoinSteps(some, {1, 25}, asked)), "2:16 2:17 2:18 missing 19-20 next 0");
  EXPECT_EQ(Text(JoinSteps(All(), {1, 7}, {})), "missing 1-7 next 0");
  EXPECT_EQ(Text(JoinSteps(All(), {0, 7}, {})), "next 0");
}

TEST(StepHistory, PageEndsWhereANodeHasMore) {
  std::vector<NodeSteps> nodes(2);
  Have(&nodes[0], 1, 1, 1, 10);
  Tell(&nodes[0], 1, 1, 3);
  Have(&nodes[1], 2, 3, 3, 9);
  Tell(&nodes[1], 2, 3, 5);
  EXPECT_EQ(Text(JoinSteps(All(3), {}, nodes)), "1:1 1:2 2:3 next 4");
}

TEST(StepHistory, KnowsAttemptsWithoutSteps) {
  std::vector<NodeSteps> nodes(1);
  Have(&nodes[0], 1, 1, 1, 10);
  EXPECT_FALSE(LacksAttempt(All(), 1, nodes));
  EXPECT_TRUE(LacksAttempt(All(), 2, nodes));
  StepQuery query = All();
  query.attempt = 1;
  EXPECT_FALSE(LacksAttempt(query, 2, nodes));
}

TEST(StepHistory, ParsesSegmentAndStepLines) {
  NodeSteps node;
  const auto any = [](int32_t) { return true; };
  v1::LogLines::Line line;
  line.set_line(R"({"attempt":2,"began":11,"first":12,"last":13})");
  EXPECT_TRUE(TakeStepLine(line, any, &node).ok());
  line.set_step(12);
  line.set_line(R"({"step":12,"attempt":2,"loss":"NaN","of_a_newer_release":1})");
  EXPECT_TRUE(TakeStepLine(line, any, &node).ok());
  line.set_line("[");
  EXPECT_EQ(TakeStepLine(line, any, &node).code(), absl::StatusCode::kDataLoss);
  ASSERT_EQ(node.segments.size(), 1u);
  ASSERT_EQ(node.records.size(), 1u);
  EXPECT_EQ(node.segments[0].began(), 11);
}

TEST(StepHistory, RejectsLineOfAttemptNotHostedByNode) {
  NodeSteps node;
  const auto second = [](int32_t attempt) { return attempt == 2; };
  v1::LogLines::Line line;
  for (const int64_t step : {0, 12}) {
    line.set_step(step);
    line.set_line(R"({"attempt":3})");
    EXPECT_EQ(TakeStepLine(line, second, &node).code(), absl::StatusCode::kPermissionDenied);
    line.set_line(R"({"attempt":2})");
    EXPECT_TRUE(TakeStepLine(line, second, &node).ok());
  }
  EXPECT_EQ(node.segments.size(), 1u);
  EXPECT_EQ(node.records.size(), 1u);
}

// Property: attempts on random nodes, read in pages of random size, give the result of reading everything.
TEST(StepHistory, PagesOfAnySizeCoverHistory) {
  for (int seed = 1; seed <= Seeds(200); ++seed) {
    std::mt19937 random(static_cast<unsigned>(seed));
    const auto below = [&](int64_t n) { return static_cast<int64_t>(random() % static_cast<unsigned>(n)); };
    std::vector<std::map<int, std::pair<int64_t, int64_t>>> of_node(1 + static_cast<size_t>(below(3)));
    std::map<int64_t, int> run;
    int64_t newest = 0;
    for (int attempt = 1; attempt <= 1 + below(4); ++attempt) {
      const int64_t began = 1 + below(newest + 1), last = began + below(12);
      of_node[static_cast<size_t>(below(static_cast<int64_t>(of_node.size())))][attempt] = {began, last};
      run.erase(run.lower_bound(began), run.end());
      for (int64_t step = began; step <= last; ++step) run[step] = attempt;
      newest = last;
    }
    StepQuery query = All(1 + static_cast<int>(below(7)));
    std::map<int64_t, int> read;
    for (int pages = 0;; ++pages) {
      ASSERT_LT(pages, 100) << "seed " << seed;
      std::vector<NodeSteps> nodes;
      for (const auto& attempts : of_node) {
        NodeSteps& node = nodes.emplace_back();
        std::map<int64_t, int> own;  // As agent/logs/step_records.cc reads it.
        for (const auto& [attempt, span] : attempts) {
          Have(&node, attempt, span.first, span.first, span.second);
          own.erase(own.lower_bound(span.first), own.end());
          for (int64_t step = span.first; step <= span.second; ++step) own[step] = attempt;
        }
        for (auto at = own.lower_bound(query.first); at != own.end(); ++at) {
          if (static_cast<int>(node.records.size()) == query.limit) break;
          Tell(&node, at->second, at->first, at->first);
        }
      }
      const v1::ListStepsResponse page = JoinSteps(query, {}, nodes);
      EXPECT_LE(page.steps_size(), query.limit);
      EXPECT_THAT(page.missing(), IsEmpty()) << "seed " << seed << ": " << Text(page);
      for (const v1::StepRecord& step : page.steps())
        EXPECT_TRUE(read.emplace(step.step(), step.attempt()).second) << "seed " << seed;
      if (page.next_step() == 0) break;
      EXPECT_GT(page.next_step(), query.first);
      query.first = page.next_step();
    }
    EXPECT_EQ(read, run) << "seed " << seed;
  }
}

}  // namespace
}  // namespace fsdpd
