#include "fsdp/telemetry/trace_writer.h"

#include <gmock/gmock.h>
#include <google/protobuf/struct.pb.h>
#include <google/protobuf/util/json_util.h>
#include <gtest/gtest.h>

namespace fsdpd {
namespace {

using ::testing::HasSubstr;

Trace OneStep() {
  Layout layout;
  layout.units.resize(2);
  layout.units[1].name = "layer.\"0\"";  // No such name today.
  Program program;
  program.instructions.resize(3);
  program.instructions[0].op = Op::kForward;
  program.instructions[0].unit = 1;
  program.instructions[0].micro_batch = 2;
  program.instructions[1].op = Op::kRelease;
  program.instructions[2].op = Op::kNorm;
  std::vector<Span> spans(3);
  spans[0].start_seconds = 0.001;
  spans[0].end_seconds = 0.0015;
  spans[2].lane = LaneId::kReduce;
  return TraceOf(program, layout, spans);
}

TEST(TraceWriter, NamesOperationUnitAndMicroBatch) {
  const Trace trace = OneStep();
  ASSERT_EQ(trace.size(), 2u);  // Without the Release.
  EXPECT_EQ(trace[0].name, "Forward layer.\"0\" mb 2");
  EXPECT_EQ(trace[1].name, "Norm");
}

TEST(TraceWriter, WritesMicrosecondsOnATrackPerLane) {
  const std::string json = TraceJson({{}, OneStep()});
  EXPECT_THAT(json, HasSubstr(R"("cat":"compute","pid":1,"tid":0,"ts":1000.000,"dur":500.000)"));
  EXPECT_THAT(json, HasSubstr(R"("name":"Norm","cat":"reduce","pid":1,"tid":2)"));
  EXPECT_THAT(json, HasSubstr(R"("args":{"name":"rank 1"})"));
}

TEST(TraceWriter, IsJsonWhateverTheNames) {
  google::protobuf::Struct parsed;
  const auto status = google::protobuf::util::JsonStringToMessage(TraceJson({OneStep()}), &parsed);
  ASSERT_TRUE(status.ok()) << status.ToString();
  const auto& events = parsed.fields().at("traceEvents").list_value();
  EXPECT_EQ(events.values_size(), 1 + kLanes + 2);
}

}  // namespace
}  // namespace fsdpd
