#include "fsdp/plan/predict/timeline.h"

#include <gtest/gtest.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cmath>
#include <map>

namespace fsdpd {
namespace {

// A gather that began in the step before, a forward, and an instruction that takes no time.
v1::Plan SmallPlan() {
  v1::Plan plan;
  plan.mutable_resolved()->set_name("job");
  plan.set_world_size(2);
  plan.mutable_memory()->set_peak_bytes(3000);
  const auto add = [&](const char* op, const char* lane, double start, double seconds) {
    v1::Plan::Instruction* instruction = plan.add_instructions();
    instruction->set_op(op);
    instruction->set_unit("layer.0");
    instruction->set_micro_batch(std::string(op) == "Gather" ? -1 : 0);
    instruction->set_lane(lane);
    v1::Prediction::Span* span = plan.mutable_prediction()->mutable_timeline()->add_spans();
    span->set_start_seconds(start);
    span->set_seconds(seconds);
  };
  add("Gather", "gather", -0.25, 0.5);
  add("Forward", "compute", 0.25, 1);
  add("Release", "compute", 1.25, 0);
  v1::Prediction::Timeline* timeline = plan.mutable_prediction()->mutable_timeline();
  timeline->add_components("main_params");
  timeline->add_components("activations");
  for (const auto& [start, activations] : {std::pair<double, int64_t>{0, 0}, {0.25, 2000}, {1.25, 0}}) {
    v1::Prediction::MemorySample* sample = timeline->add_memory();
    sample->set_start_seconds(start);
    sample->add_bytes(1000);
    sample->add_bytes(activations);
  }
  plan.mutable_prediction()->set_step_seconds(1.5);
  plan.mutable_prediction()->mutable_profile()->set_name("cpu");
  return plan;
}

TEST(Timeline, OmitsEmptyInstructions) {
  const Timeline timeline = TimelineOf(SmallPlan());
  EXPECT_EQ(timeline.title, "job: one step on one of 2 ranks, cpu, predicted");
  ASSERT_EQ(timeline.slices.size(), 2u);
  EXPECT_EQ(timeline.slices[0].name, "Gather layer.0");
  EXPECT_EQ(timeline.slices[1].name, "Forward layer.0 mb 0");
  EXPECT_EQ(timeline.tracks[timeline.slices[1].track], "compute");
  EXPECT_EQ(timeline.tracks.back(), "copy") << "every lane is known";
  EXPECT_EQ(timeline.samples.size(), 3u);
  EXPECT_EQ(timeline.peak_bytes, 3000);
}

// Parsed by an independent parser: JSON is YAML.
TEST(Timeline, TraceHasLanesAndCounters) {
  Timeline timeline = TimelineOf(SmallPlan());
  timeline.title += " \"quoted\\\" \n";
  const YAML::Node trace = YAML::Load(TraceJson({timeline}));
  double first = 1e9, forward_start = -1;
  std::vector<double> counters;
  for (const YAML::Node& event : trace["traceEvents"]) {
    const auto phase = event["ph"].as<std::string>(), name = event["name"].as<std::string>();
    if (phase == "X") first = std::min(first, event["ts"].as<double>());
    if (name == "Forward layer.0 mb 0") {
      forward_start = event["ts"].as<double>();
      EXPECT_EQ(event["dur"].as<double>(), 1e6);
    }
    if (phase == "C" && name == "activations") counters.push_back(event["args"]["bytes"].as<double>());
  }
  EXPECT_EQ(first, 0) << "what began in the step before is shown";
  EXPECT_EQ(forward_start, 0.5e6);
  EXPECT_EQ(counters, (std::vector<double>{0, 2000, 0}));
}

TEST(Timeline, TraceHasArgumentsAndFlows) {
  Timeline timeline = TimelineOf(SmallPlan());
  timeline.step = 7;
  timeline.slices[0].arguments = {{"unit", "a \"b\""}, {"bytes", int64_t{1} << 40}};
  timeline.flows = {{0, 1}};
  const YAML::Node trace = YAML::Load(TraceJson({timeline}, 3));
  std::map<std::string, YAML::Node> events;  // By phase; the first of slices.
  for (const YAML::Node& event : trace["traceEvents"]) {
    EXPECT_EQ(event["pid"].as<int>(), 3);
    events.emplace(event["ph"].as<std::string>(), event);
  }
  EXPECT_EQ(events["X"]["args"]["unit"].as<std::string>(), "a \"b\"");
  EXPECT_EQ(events["X"]["args"]["bytes"].as<int64_t>(), int64_t{1} << 40);
  EXPECT_EQ(events["s"]["id"].as<std::string>(), "0x0003000007000000");
  EXPECT_EQ(events["f"]["id"].as<std::string>(), events["s"]["id"].as<std::string>());
  EXPECT_EQ(events["f"]["ts"].as<double>(), 0.5e6);
  EXPECT_EQ(events["f"]["tid"].as<int>(), 0);
  EXPECT_EQ(events["s"]["tid"].as<int>(), 1);
}

TEST(Timeline, RoundedAdjacentSlicesDoNotOverlap) {
  Timeline timeline;
  timeline.tracks = {"compute"};
  double start = 0;
  for (int i = 0; i < 1000; ++i) {
    const double end = start + 1e-6 + i * 1.3e-10;
    timeline.slices.push_back({0, "Forward", "x", start, end - start});
    start = end;
  }
  int64_t last = 0;
  for (const YAML::Node& event : YAML::Load(TraceJson({timeline}))["traceEvents"]) {
    if (event["ph"].as<std::string>() != "X") continue;
    const int64_t begin = std::llround(event["ts"].as<double>() * 1000);
    EXPECT_EQ(begin, last);
    last = begin + std::llround(event["dur"].as<double>() * 1000);
  }
}

TEST(Timeline, MergesFilesByStartTime) {
  Timeline timeline = TimelineOf(SmallPlan());  // Its first slice begins at -0.25 s.
  timeline.begin_unix_nanos = 1'000'000'000'500'000'000;
  Timeline later = timeline;
  later.begin_unix_nanos += 3'000;
  const absl::StatusOr<std::string> joined = JoinedTrace({TraceJson({later}, 1), TraceJson({timeline}, 0)});
  ASSERT_TRUE(joined.ok()) << joined.status();
  const YAML::Node trace = YAML::Load(*joined);
  EXPECT_EQ(trace["beginUnixNanos"].as<int64_t>(), 1'000'000'000'250'000'000);
  std::map<int, double> gathers;  // By process.
  for (const YAML::Node& event : trace["traceEvents"]) {
    if (event["name"].as<std::string>() == "Gather layer.0")
      gathers[event["pid"].as<int>()] = event["ts"].as<double>();
  }
  EXPECT_EQ(gathers, (std::map<int, double>{{0, 0}, {1, 3}}));
  EXPECT_EQ(*JoinedTrace({*joined}), *joined) << "what was joined is such a file again";
}

TEST(Timeline, RejectsIncompleteTrace) {
  const std::string whole = TraceJson({TimelineOf(SmallPlan())});
  for (size_t bytes = 0; bytes < whole.size(); ++bytes)
    ASSERT_EQ(JoinedTrace({whole, whole.substr(0, bytes)}).status().code(), absl::StatusCode::kDataLoss)
        << bytes;
  EXPECT_TRUE(JoinedTrace({whole, whole}).ok());
}

TEST(Timeline, PictureLabelsAndEscapes) {
  Timeline timeline = TimelineOf(SmallPlan());
  timeline.title = "a<b & \"c\"";
  const std::string svg = Picture(timeline);
  EXPECT_EQ(svg.find("<svg "), 0u);
  EXPECT_EQ(svg.substr(svg.size() - 7), "</svg>\n");
  for (const char* text : {"a&lt;b &amp; &quot;c&quot;", "main_params", "activations", ">compute<",
                           ">gather<", "planned peak"}) {
    EXPECT_NE(svg.find(text), std::string::npos) << text;
  }
  EXPECT_EQ(svg.find(">reduce<"), std::string::npos) << "an empty lane takes no room";
}

TEST(Timeline, PictureOfManyInstructionsIsSmall) {
  Timeline timeline = TimelineOf(SmallPlan());
  timeline.seconds = 1;
  timeline.slices.clear();
  timeline.samples.clear();
  for (int n = 0; n < 100'000; ++n) {
    timeline.slices.push_back({0, n % 2 == 0 ? "Forward" : "Backward", "x", n * 1e-5, 1e-5});
    timeline.samples.push_back({n * 1e-5, {n, 7 * n % 1000}});
  }
  EXPECT_LT(Picture(timeline).size(), 200'000u);
}

}  // namespace
}  // namespace fsdpd
