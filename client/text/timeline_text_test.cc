#include "client/text/timeline_text.h"

#include <gtest/gtest.h>

namespace fsdpd {
namespace {

v1::GetStepTimelineResponse Told() {
  v1::GetStepTimelineResponse told;
  told.set_attempt(2);
  v1::StepTimeline* const timeline = told.mutable_timeline();
  timeline->set_step(200);
  timeline->set_step_seconds(0.5);
  const auto add = [timeline](const char* lane, const char* instruction, double start, double seconds) {
    v1::StepTimeline::Run* const run = timeline->add_runs();
    run->set_lane(lane);
    run->set_instruction(instruction);
    run->set_start_seconds(start);
    run->set_seconds(seconds);
  };
  add("gather", "Gather layer.0", -0.01, 0.02);
  add("compute", "Forward layer.0 mb 0", 0.01, 0.1);
  add("compute", "Backward layer.0 mb 0", 0.11, 0.2);
  add("compute", "Update layer.0", 0.4, 0.05);
  add("compute", "Forward layer.1 mb 0", 0.31, 0.01);
  for (const char* name : {"main_params", "optimizer", "activations_and_workspace"})
    timeline->add_components(name);
  for (const auto& [start, bytes] : {std::pair(0.0, 1024), std::pair(0.11, 4096), std::pair(0.31, 2048)}) {
    v1::StepTimeline::MemorySample* const sample = timeline->add_memory();
    sample->set_start_seconds(start);
    sample->add_bytes(2048);
    sample->add_bytes(0);
    sample->add_bytes(bytes);
  }
  return told;
}

TEST(StepTimelineText, ShowsLongestRunsAndPeakMemory) {
  EXPECT_EQ(StepTimelineText(Told()),
            "step 200 of attempt 2: 500.0 ms\n"
            "\n"
            "LANE     RUNS  BUSY      LONGEST                FROM       TIME\n"
            "gather   1     20.0 ms   Gather layer.0         -10.00 ms  20.0 ms\n"
            "compute  4     360.0 ms  Backward layer.0 mb 0  110.0 ms   200.0 ms\n"
            "                         Forward layer.0 mb 0   10.0 ms    100.0 ms\n"
            "                         Update layer.0         400.0 ms   50.0 ms\n"
            "\n"
            "peak memory, from 110.0 ms:\n"
            "  COMPONENT                  BYTES\n"
            "  main_params                2.00 KiB\n"
            "  activations_and_workspace  4.00 KiB\n"
            "  allocated                  6.00 KiB\n");
}

TEST(StepTimelineText, ReportsMissingParts) {
  v1::GetStepTimelineResponse told = Told();
  told.mutable_timeline()->set_runs_omitted(7);
  told.mutable_timeline()->clear_memory();
  const std::string text = StepTimelineText(told);
  EXPECT_NE(text.find("\n7 shorter runs are omitted\n"), std::string::npos) << text;
  EXPECT_NE(text.find("\nmemory was not measured\n"), std::string::npos) << text;
}

TEST(StepTimelineText, RemovesControlCharacters) {
  v1::GetStepTimelineResponse told = Told();
  told.mutable_timeline()->mutable_runs(1)->set_instruction("Forward\x1b[2J");
  EXPECT_EQ(StepTimelineText(told).find('\x1b'), std::string::npos);
}

}  // namespace
}  // namespace fsdpd
