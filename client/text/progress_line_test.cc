#include "client/text/progress_line.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace fsdpd {
namespace {

v1::StepReport Report(int64_t step, double seconds = 0.165) {
  v1::StepReport report;
  report.set_step(step);
  report.set_loss(4.83121);
  report.set_grad_norm(0.9704);
  report.set_learning_rate(3e-4);
  report.set_step_seconds(seconds);
  report.set_tokens(2030);
  report.mutable_memory()->set_peak_bytes(64172851);
  v1::OpTime* op = report.add_ops();
  op->set_seconds(0.06);
  op->set_exposed_seconds(0.004);
  op = report.add_ops();
  op->set_seconds(0.04);
  op->set_exposed_seconds(0.014);
  report.set_exposed_seconds(0.016);  // Both collectives were in flight in a part of it.
  return report;
}

TEST(ProgressLine, FormatsLine) {
  EXPECT_EQ(ProgressLine(ProgressOf(Report(20), 200, 0.1667)),
            "step 20/200  loss 4.8312  norm 0.97  lr 3.00e-04  tok/s 12.3 k  step 165 ms  overlap 84%  peak "
            "61.2 MiB  eta 30 s");
}

TEST(ProgressLine, ShowsDataWait) {
  v1::StepReport report = Report(20);
  report.set_data_wait_seconds(2.2);
  EXPECT_EQ(ProgressLine(ProgressOf(report, 200, 0.1667)),
            "step 20/200  loss 4.8312  norm 0.97  lr 3.00e-04  tok/s 12.3 k  step 165 ms (waited 2 s for "
            "data)  overlap 84%  "
            "peak 61.2 MiB  eta 30 s");
}

TEST(ProgressLine, HasNoOverlapWithoutCommunication) {
  v1::StepReport report = Report(200);
  report.clear_ops();
  EXPECT_EQ(ProgressLine(ProgressOf(report, 200, 0)),
            "step 200/200  loss 4.8312  norm 0.97  lr 3.00e-04  tok/s 12.3 k  step 165 ms  overlap -  peak "
            "61.2 MiB  eta 0 ms");
}

TEST(ProgressLine, AcceptsEmptyReport) {
  EXPECT_EQ(ProgressLine(ProgressOf({}, 0, 0)),
            "step 0/0  loss 0.0000  norm 0  lr 0.00e+00  tok/s 0  step 0 ms  overlap -  peak 0 B  eta 0 ms");
}

TEST(ProgressBar, FillsWideTerminals) {
  EXPECT_EQ(ProgressBar(ProgressOf(Report(100), 200, 0.1667), 120),
            "[===========>            ] 100/200  loss 4.8312  tok/s 12.3 k  step 165 ms  overlap 84%  "
            "peak 61.2 MiB  eta 17 s");
}

TEST(ProgressBar, AddsNormAndRateIfTheyFit) {
  EXPECT_EQ(
      ProgressBar(ProgressOf(Report(100), 200, 0.1667), 150),
      "[===========>            ] 100/200  loss 4.8312  norm 0.97  lr 3.00e-04  tok/s 12.3 k  step 165 ms  "
      "overlap 84%  peak 61.2 MiB  eta 17 s");
}

TEST(ProgressBar, OmitsFieldsThatDoNotFit) {
  const Progress progress = ProgressOf(Report(200), 200, 0.1667);
  EXPECT_EQ(ProgressBar(progress, 80),
            "[==========] 200/200  loss 4.8312  tok/s 12.3 k  overlap 84%  eta 0 ms");
  EXPECT_EQ(ProgressBar(progress, 40), "[==========] 200/200  loss 4.8312");
  EXPECT_EQ(ProgressBar(progress, 12), "200/200");
  EXPECT_EQ(ProgressBar(progress, 3), "");
}

TEST(ProgressBar, NeverUsesLastColumn) {
  for (int width = 1; width < 200; ++width) {
    EXPECT_LT(static_cast<int>(ProgressBar(ProgressOf(Report(7), 200, 0), width).size()), std::max(width, 1));
  }
}

TEST(StepHistory, ExcludesWarmUp) {
  StepHistory history;
  history.Add(Report(1, 9));
  EXPECT_EQ(history.median_step_seconds(), 9);
  history.Add(Report(2, 8));
  for (const double seconds : {0.3, 0.1, 0.2, 0.4}) history.Add(Report(3, seconds));
  EXPECT_DOUBLE_EQ(history.median_step_seconds(), 0.25);
  EXPECT_DOUBLE_EQ(history.tokens_per_second(), 8120);
  EXPECT_NEAR(history.overlap(), 0.84, 1e-9);
  EXPECT_EQ(history.steps(), 6u);
}

TEST(StepHistory, SumsDataWaitWithoutWarmUp) {
  StepHistory history;
  v1::StepReport report = Report(1);
  report.set_data_wait_seconds(30);
  history.Add(report);
  EXPECT_EQ(history.data_wait_seconds(), 30);
  history.Add(Report(2));
  report.set_data_wait_seconds(2);
  for (int step = 3; step <= 5; ++step) history.Add(report);
  EXPECT_EQ(history.data_wait_seconds(), 6);
}

TEST(StepHistory, IsZeroWithoutSteps) {
  EXPECT_EQ(StepHistory().median_step_seconds(), 0);
  EXPECT_LT(StepHistory().overlap(), 0);
}

TEST(ProgressLine, StageBarFitsWidth) {
  EXPECT_EQ(StageBar(1, 9, "ranks begin", 80), "[          ] 1/9  ranks begin");
  EXPECT_EQ(StageBar(4, 9, "attention", 80), "[==>       ] 4/9  attention");
  EXPECT_EQ(StageBar(4, 9, "attention", 20), "[==>       ] 4/9  a");
  EXPECT_EQ(StageBar(4, 9, "attention", 0), "");
}

}  // namespace
}  // namespace fsdpd
