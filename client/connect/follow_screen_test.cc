#include "client/connect/follow_screen.h"

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "base/temp_dir.h"

namespace fsdpd {
namespace {

class FollowScreenTest : public testing::Test {
 protected:
  FollowScreenTest() { console_.clock = &clock_; }

  static v1::Job Job(v1::JobState state, const std::string& reason = "") {
    v1::Job job;
    job.set_id("j");
    job.set_state(state);
    job.set_reason(reason);
    job.set_attempt(1);
    job.mutable_spec()->mutable_train()->set_steps(40);
    return job;
  }

  static v1::StepReport Step(int64_t step) {
    v1::StepReport report;
    report.set_step(step);
    report.set_step_seconds(0.1);
    report.set_loss(1);
    return report;
  }

  std::string TakeOut() {
    std::string text = out_.str();
    out_.str("");
    return text;
  }

  FakeClock clock_;
  std::istringstream in_;
  std::ostringstream out_, err_;
  Console console_{in_, out_, err_};
};

constexpr char kRest[] =
    "  loss 1.0000  norm 0  lr 0.00e+00  tok/s 0  step 100 ms  overlap -  peak 0 B  eta ";

TEST_F(FollowScreenTest, PrintsEachStateOnce) {
  FollowScreen screen(&console_, "table");
  screen.OnJob(Job(v1::JOB_STATE_QUEUED, "waits for 4 ranks"));
  screen.OnJob(Job(v1::JOB_STATE_QUEUED, "waits for 4 ranks"));
  screen.OnJob(Job(v1::JOB_STATE_RUNNING));
  EXPECT_EQ(TakeOut(), "j queued: waits for 4 ranks\nj running\n");
}

TEST_F(FollowScreenTest, PrintsEachEvaluation) {
  FollowScreen screen(&console_, "table");
  screen.OnJob(Job(v1::JOB_STATE_RUNNING));
  TakeOut();
  v1::StepReport report;
  report.set_step(7);
  report.mutable_evaluation()->set_loss(2.10342);
  screen.OnStep(report);
  EXPECT_EQ(TakeOut().substr(0, 42), "j validation loss 2.1034 after step 7\nstep");
}

TEST_F(FollowScreenTest, PrintsNewCheckpoints) {
  console_.terminal = true;
  console_.width = [] { return 40; };
  FollowScreen screen(&console_, "table");
  v1::Job job = Job(v1::JOB_STATE_RUNNING);
  job.add_checkpoints()->set_step(10);
  screen.OnJob(job);
  EXPECT_EQ(TakeOut(), "j running\n") << "known checkpoints are not reported";
  screen.OnStep(Step(20));
  TakeOut();
  job.add_checkpoints()->set_step(20);
  job.mutable_checkpoints(1)->set_bytes(2048);
  job.mutable_checkpoints(1)->set_seconds(2);
  screen.OnJob(job);
  EXPECT_EQ(TakeOut(), "\n\x1b[?25hj checkpoint of step 20 committed (2.00 KiB in 2 s)\n");
  job.mutable_failed_checkpoint()->set_step(30);
  job.mutable_failed_checkpoint()->set_error("full");
  screen.OnJob(job);
  EXPECT_EQ(TakeOut(), "j checkpoint of step 30 could not be written: full\n");
}

TEST_F(FollowScreenTest, LimitsRateOfPlainLines) {
  FollowScreen screen(&console_, "table");
  screen.OnJob(Job(v1::JOB_STATE_RUNNING));
  TakeOut();
  for (int step = 1; step <= 12; ++step) screen.OnStep(Step(step));
  EXPECT_EQ(TakeOut(), std::string("step 1/40") + kRest + "4 s\nstep 11/40" + kRest + "3 s\n");
  clock_.Advance(absl::Seconds(1));
  screen.OnStep(Step(13));
  EXPECT_EQ(TakeOut(), std::string("step 13/40") + kRest + "3 s\n");
  screen.OnStep(Step(40));
  EXPECT_EQ(TakeOut(), std::string("step 40/40") + kRest + "0 ms\n");
}

TEST_F(FollowScreenTest, RedrawsLineOnTerminal) {
  console_.terminal = true;
  console_.width = [] { return 40; };
  {
    FollowScreen screen(&console_, "table");
    screen.OnJob(Job(v1::JOB_STATE_RUNNING));
    TakeOut();
    screen.OnStep(Step(1));
    EXPECT_EQ(TakeOut(), "\x1b[?25l\r\x1b[2K[          ] 1/40  loss 1.0000  tok/s 0");
    screen.OnStep(Step(2));
    EXPECT_EQ(TakeOut(), "") << "redrawn at most ten times per second";
    screen.OnStep(Step(40));
    EXPECT_EQ(TakeOut(), "\r\x1b[2K[==========] 40/40  loss 1.0000");
  }
  EXPECT_EQ(TakeOut(), "\n\x1b[?25h") << "every exit path shows the cursor";
}

TEST_F(FollowScreenTest, ReportsLostConnection) {
  FollowScreen screen(&console_, "table");
  screen.OnConnectionLost(absl::UnavailableError("Socket closed"));
  screen.OnConnectionBack();
  EXPECT_EQ(err_.str(), "connection lost (Socket closed); reconnecting\nconnected again\n");
  EXPECT_EQ(TakeOut(), "");
}

TEST_F(FollowScreenTest, RecordsStepsAsJsonLines) {
  TempDir dir;
  FollowScreen screen(&console_, "table");
  ASSERT_TRUE(screen.Record(dir.File("steps.jsonl")).ok());
  screen.OnJob(Job(v1::JOB_STATE_RUNNING));
  for (int step = 1; step <= 2; ++step) screen.OnStep(Step(step));
  std::stringstream text;
  text << std::ifstream(dir.File("steps.jsonl")).rdbuf();
  std::string line;
  for (const char* start : {"{\"step\": 1, \"loss\": 1, ", "{\"step\": 2, \"loss\": 1, "}) {
    ASSERT_TRUE(std::getline(text, line));
    EXPECT_EQ(line.find(start), 0u) << line;
  }
  const std::string missing = dir.File("no/steps.jsonl");
  EXPECT_EQ(FollowScreen(&console_, "table").Record(missing).message(),
            "--record " + missing + ": No such file or directory [FILE_ERROR]");
}

TEST_F(FollowScreenTest, PrintsUpdatesAsJson) {
  FollowScreen screen(&console_, "json");
  screen.OnJob(Job(v1::JOB_STATE_QUEUED));
  screen.OnStep(Step(3));
  screen.Finish(Job(v1::JOB_STATE_SUCCEEDED));
  const std::string out = TakeOut();
  EXPECT_EQ(out.find("{\"id\": \"j\", "), 0u) << out;
  EXPECT_NE(out.find("\"state\": \"queued\""), std::string::npos) << out;
  EXPECT_NE(out.find("}\n{\"step\": 3, \"loss\": 1, "), std::string::npos) << out;
}

// Regression: reports that were lost while disconnected left gaps in the record without a message.
TEST_F(FollowScreenTest, ReportsGapInRecord) {
  TempDir dir;
  FollowScreen screen(&console_, "table");
  ASSERT_TRUE(screen.Record(dir.File("r")).ok());
  screen.OnJob(Job(v1::JOB_STATE_RUNNING));
  screen.OnStep(Step(7));  // A record may start at any step.
  screen.OnStep(Step(8));
  EXPECT_EQ(err_.str(), "");
  screen.OnStep(Step(12));
  const std::string path = "--record " + dir.File("r");
  EXPECT_EQ(err_.str(), path + ": steps 9 to 11 were not received and are missing\n");
  err_.str("");
  v1::Job ended = Job(v1::JOB_STATE_SUCCEEDED);
  ended.mutable_last_step()->set_step(40);
  screen.Finish(ended);
  EXPECT_EQ(err_.str(), path + ": steps 13 to 40 were not received and are missing\n");
}

TEST_F(FollowScreenTest, ReportsFailedRecord) {
  FollowScreen screen(&console_, "table");
  ASSERT_TRUE(screen.Record("/dev/full").ok());
  screen.OnJob(Job(v1::JOB_STATE_RUNNING));
  screen.OnStep(Step(1));
  screen.OnStep(Step(2));
  EXPECT_EQ(err_.str(), "--record /dev/full: No space left on device; the record ends before step 1\n");
}

TEST_F(FollowScreenTest, HandlesNarrowerTerminal) {
  int width = 100;
  console_.terminal = true;
  console_.width = [&width] { return width; };
  FollowScreen screen(&console_, "table");
  screen.OnJob(Job(v1::JOB_STATE_RUNNING));
  screen.OnStep(Step(1));
  const size_t columns = TakeOut().size() - std::string("j running\n\x1b[?25l\r\x1b[2K").size();
  width = 30;
  clock_.Advance(absl::Seconds(1));
  screen.OnStep(Step(2));
  const std::string drawn = TakeOut();
  const std::string up = "\r\x1b[" + std::to_string((columns - 1) / 30) + "A\x1b[J\r\x1b[2K";
  EXPECT_EQ(drawn.find(up), 0u) << "the first row of the wrapped line is above the cursor";
  EXPECT_LT(drawn.size() - up.size(), 30u);
}

}  // namespace
}  // namespace fsdpd
