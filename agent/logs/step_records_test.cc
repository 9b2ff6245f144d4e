#include "agent/logs/step_records.h"

#include <gmock/gmock.h>
#include <google/protobuf/util/json_util.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include <atomic>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <memory>

#include "base/temp_dir.h"
#include "proto/fsdpd/v1/steps.pb.h"

namespace fsdpd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
namespace fs = std::filesystem;

constexpr char kJob[] = "tiny-k3x9q2";

v1::StepReport Report(int64_t step, double loss = 2.5) {
  v1::StepReport report;
  report.set_step(step);
  report.set_loss(loss);
  report.set_unix_nanos(1'800'000'000'000'000'000 + step);
  return report;
}

v1::RecordedSteps Ask(int64_t first = 1, int64_t last = 1'000'000, int64_t every = 1, int most = 1000) {
  v1::RecordedSteps ask;
  ask.set_first(first);
  ask.set_last(last);
  ask.set_every(every);
  ask.set_max_records(most);
  return ask;
}

class StepRecordsTest : public ::testing::Test {
 protected:
  StepRecordsTest() { Open({}); }

  void Open(StepRecordLimits limits) {
    records_.reset();
    records_ = std::make_unique<StepRecords>(
        dir_.path(), [this] { ++missed_; }, limits);
  }
  void Add(int attempt, int64_t first, int64_t last) {
    for (int64_t step = first; step <= last; ++step)
      records_->Add({kJob, attempt}, Report(step, attempt + step / 1000.0));
  }
  // "2:11" is step 11 of attempt 2, "[2 began 11: 11-13]" is a segment.
  std::vector<std::string> Read(int attempt, const v1::RecordedSteps& ask) {
    const auto lines = records_->Read(kJob, attempt, ask);
    if (!lines.ok()) return {std::string(lines.status().message())};
    std::vector<std::string> found;
    for (const StepRecords::Line& line : *lines) {
      if (line.step == 0) {
        v1::StepSegment segment;
        EXPECT_TRUE(google::protobuf::util::JsonStringToMessage(line.json, &segment).ok()) << line.json;
        found.push_back("[" + std::to_string(segment.attempt()) + " began " +
                        std::to_string(segment.began()) + ": " + std::to_string(segment.first()) + "-" +
                        std::to_string(segment.last()) + "]");
        continue;
      }
      v1::StepRecord record;
      EXPECT_TRUE(google::protobuf::util::JsonStringToMessage(line.json, &record).ok()) << line.json;
      EXPECT_EQ(record.step(), line.step);
      EXPECT_EQ(record.loss(), record.attempt() + static_cast<double>(record.step()) / 1000.0);
      found.push_back(std::to_string(record.attempt()) + ":" + std::to_string(record.step()));
    }
    return found;
  }
  std::string Directory() const { return dir_.path() + "/" + kJob + "/steps"; }
  std::vector<std::string> Names() {
    (void)Read(0, Ask());  // Waits until all added steps are written.
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(Directory())) names.push_back(entry.path().filename());
    std::sort(names.begin(), names.end());
    return names;
  }

  TempDir dir_;
  std::atomic<int> missed_{0};
  std::unique_ptr<StepRecords> records_;
};

TEST_F(StepRecordsTest, RoundTripsEveryNumber) {
  v1::StepReport report = Report(7, 0.1 + 0.2);
  report.set_grad_norm(std::numeric_limits<double>::quiet_NaN());
  report.set_learning_rate(3e-5);
  report.set_step_seconds(1.0 / 3);
  report.set_tokens(1 << 20);
  report.set_compute_seconds(0.25);
  report.set_exposed_seconds(0.01);
  report.set_data_wait_seconds(1e-9);
  for (const double seconds : {0.125, 0.5}) report.add_ops()->set_seconds(seconds);
  report.mutable_memory()->set_peak_bytes(int64_t{80} << 30);
  report.mutable_memory()->set_reserved_bytes(int64_t{81} << 30);
  report.mutable_memory()->set_device_mallocs(12);
  report.set_loss_scale(65536);
  report.set_skipped(true);
  report.mutable_evaluation()->set_loss(std::numeric_limits<double>::infinity());
  records_->Add({kJob, 3}, report);
  const auto lines = records_->Read(kJob, 3, Ask());
  ASSERT_TRUE(lines.ok()) << lines.status();
  ASSERT_EQ(lines->size(), 2u);
  v1::StepRecord record;
  ASSERT_TRUE(google::protobuf::util::JsonStringToMessage(lines->back().json, &record).ok())
      << lines->back().json;
  EXPECT_TRUE(std::isnan(record.grad_norm()));
  record.set_grad_norm(0);
  v1::StepRecord expected;
  expected.set_step(7);
  expected.set_attempt(3);
  expected.set_unix_nanos(report.unix_nanos());
  expected.set_loss(0.1 + 0.2);
  expected.set_learning_rate(3e-5);
  expected.set_step_seconds(1.0 / 3);
  expected.set_tokens(1 << 20);
  expected.set_compute_seconds(0.25);
  expected.set_communication_seconds(0.625);
  expected.set_exposed_seconds(0.01);
  expected.set_data_wait_seconds(1e-9);
  expected.set_peak_bytes(int64_t{80} << 30);
  expected.set_reserved_bytes(int64_t{81} << 30);
  expected.set_device_mallocs(12);
  expected.set_loss_scale(65536);
  expected.set_skipped(true);
  expected.set_evaluation_loss(std::numeric_limits<double>::infinity());
  EXPECT_EQ(record.SerializeAsString(), expected.SerializeAsString()) << record.DebugString();
}

TEST_F(StepRecordsTest, NewestAttemptOfAStepCounts) {
  Add(1, 1, 5);
  Add(2, 3, 4);
  Add(3, 4, 6);
  EXPECT_THAT(Read(0, Ask()), ElementsAre("[1 began 1: 1-5]", "[2 began 3: 3-4]", "[3 began 4: 4-6]", "1:1",
                                          "1:2", "2:3", "3:4", "3:5", "3:6"));
  EXPECT_THAT(Read(1, Ask(4)), ElementsAre("[1 began 1: 1-5]", "1:4", "1:5"));
  // Steps that were rewound and not repeated are not part of the run.
  Add(4, 2, 2);
  EXPECT_THAT(Read(0, Ask(2, 9)), ElementsAre("[1 began 1: 1-5]", "[2 began 3: 3-4]", "[3 began 4: 4-6]",
                                              "[4 began 2: 2-2]", "4:2"));
}

TEST_F(StepRecordsTest, ReadsPagesWithAStride) {
  Add(1, 1, 3000);
  EXPECT_THAT(Read(1, Ask(2998, 5000)), ElementsAre("[1 began 1: 1-3000]", "1:2998", "1:2999", "1:3000"));
  EXPECT_THAT(Read(1, Ask(10, 2000, 1, 2)), ElementsAre("[1 began 1: 1-3000]", "1:10", "1:11"));
  EXPECT_THAT(Read(1, Ask(1, 3000, 1000)), ElementsAre("[1 began 1: 1-3000]", "1:1000", "1:2000", "1:3000"));
  EXPECT_THAT(Read(1, Ask(7, 40, 10)), ElementsAre("[1 began 1: 1-3000]", "1:10", "1:20", "1:30", "1:40"));
  EXPECT_THAT(Read(1, Ask(4000)), ElementsAre("[1 began 1: 1-3000]"));
}

TEST_F(StepRecordsTest, GapStartsANewSegment) {
  Add(1, 1, 3);
  Add(1, 6, 7);
  EXPECT_THAT(Read(0, Ask(3)), ElementsAre("[1 began 1: 1-3]", "[1 began 1: 6-7]", "1:3", "1:6", "1:7"));
}

TEST_F(StepRecordsTest, RemovesOldestSegmentsBeyondTheLimit) {
  StepRecordLimits limits;
  limits.segment_bytes = 1000;
  limits.attempt_bytes = 4000;
  Open(limits);
  Add(1, 1, 40);
  Add(2, 41, 41);
  const std::vector<std::string> read = Read(0, Ask(1, 1'000'000, 1, 1000));
  int64_t bytes = 0;
  for (const auto& entry : fs::directory_iterator(Directory()))
    bytes += static_cast<int64_t>(entry.file_size());
  EXPECT_LE(bytes, 4000 + 1000 + 400) << "a segment ends with the line that fills it, and attempt 2 has one";
  EXPECT_THAT(read.front(), HasSubstr("[1 began 1: ")) << "where it began is known though its begin is gone";
  EXPECT_EQ(read.back(), "2:41");
  EXPECT_THAT(read, ::testing::Contains("1:40"));
  EXPECT_THAT(read, ::testing::Not(::testing::Contains("1:1")));
}

TEST_F(StepRecordsTest, IgnoresATornLineAndContinues) {
  Add(1, 1, 3);
  EXPECT_THAT(Names(), ElementsAre("attempt-1.began-1.from-1.jsonl"));
  records_.reset();
  const std::string path = Directory() + "/attempt-1.began-1.from-1.jsonl";
  std::ofstream(path, std::ios::app) << "{\"step\":4,\"attempt\":1,\"lo";
  Open({});
  EXPECT_THAT(Read(0, Ask()), ElementsAre("[1 began 1: 1-3]", "1:1", "1:2", "1:3"));
  Add(1, 4, 5);
  EXPECT_THAT(Names(), ElementsAre("attempt-1.began-1.from-1.jsonl", "attempt-1.began-1.from-4.jsonl"));
  EXPECT_THAT(Read(0, Ask(3)), ElementsAre("[1 began 1: 1-3]", "[1 began 1: 4-5]", "1:3", "1:4", "1:5"));
}

TEST_F(StepRecordsTest, ReportsOrSkipsInvalidFiles) {
  EXPECT_THAT(Read(0, Ask()), ElementsAre("this node has no steps of job=tiny-k3x9q2"));
  Add(2, 1, 2);
  EXPECT_THAT(Read(1, Ask()), ElementsAre("this node has no steps of job=tiny-k3x9q2 attempt=1"));
  for (const char* name : {"notes.txt", "attempt-x.began-1.from-1.jsonl", "attempt-1.began-0.from-1.jsonl"})
    std::ofstream(Directory() + "/" + name) << "nothing\n";
  std::ofstream(Directory() + "/attempt-1.began-1.from-1.jsonl") << std::string(200, '\0') << "\n";
  EXPECT_THAT(Read(0, Ask()), ElementsAre("[2 began 1: 1-2]", "2:1", "2:2"));
  std::ofstream(Directory() + "/attempt-1.began-1.from-1.jsonl") << std::string(100'000, 'x');
  EXPECT_THAT(Read(1, Ask()), ElementsAre(HasSubstr("not a step record")));
}

TEST_F(StepRecordsTest, UnwritableStepsAreAGap) {
  fs::create_directories(dir_.path() + "/" + kJob);
  std::ofstream(Directory()) << "in its place";
  Add(1, 1, 2);
  (void)records_->Read(kJob, 0, Ask());
  fs::remove(Directory());
  Add(1, 3, 4);
  EXPECT_THAT(Read(0, Ask()), ElementsAre("[1 began 1: 3-4]", "1:3", "1:4"));
  EXPECT_EQ(missed_, 2);
}

// Regression: steps were written to an unlinked file without a warning.
TEST_F(StepRecordsTest, RemovedRecordsAreCountedAndRecordingContinues) {
  Add(1, 1, 3);
  (void)Read(0, Ask());
  fs::remove_all(dir_.path() + "/" + kJob);
  Add(1, 4, 5);
  EXPECT_THAT(Read(0, Ask()), ElementsAre("[1 began 1: 4-5]", "1:4", "1:5"));
  EXPECT_EQ(missed_, 3);
}

TEST_F(StepRecordsTest, CountsStepsBeyondTheQueueLimit) {
  StepRecordLimits limits;
  limits.waiting = 0;
  Open(limits);
  Add(1, 1, 3);
  EXPECT_EQ(missed_, 3);
}

// Regression: on a full disk, empty files counted as segments and displaced old ones.
TEST_F(StepRecordsTest, FullDiskLeavesNoEmptySegment) {
  Add(1, 1, 2);
  (void)Read(0, Ask());
  const auto handler = signal(SIGXFSZ, SIG_IGN);
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit none = {0, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &none), 0);
  Add(1, 4, 9);
  (void)Read(0, Ask());
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  signal(SIGXFSZ, handler);
  EXPECT_EQ(missed_, 6);
  EXPECT_EQ(std::distance(fs::directory_iterator(Directory()), {}), 1);
  EXPECT_THAT(Read(0, Ask()), ElementsAre("[1 began 1: 1-2]", "1:1", "1:2"));
}

TEST_F(StepRecordsTest, IgnoresInvalidJobIds) {
  records_->Add({"../../etc", 1}, Report(1));
  records_->Add({kJob, 1}, Report(0));
  records_.reset();
  EXPECT_THAT(std::vector<fs::path>(fs::directory_iterator(dir_.path()), {}), IsEmpty());
}

}  // namespace
}  // namespace fsdpd
