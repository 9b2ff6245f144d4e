#include "coordinator/job/job_warnings.h"

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace fsdpd {
namespace {

using ::testing::ElementsAre;

v1::StepReport Warning(const std::string& text) {
  v1::StepReport report;
  report.add_warnings(text);
  return report;
}

TEST(JobWarnings, RecordsEachWarningOnceAsAnEvent) {
  v1::Job job;
  EXPECT_FALSE(TakeWarnings(v1::StepReport(), absl::UnixEpoch(), &job));
  EXPECT_TRUE(TakeWarnings(Warning("a"), absl::UnixEpoch(), &job));
  EXPECT_FALSE(TakeWarnings(Warning("a"), absl::UnixEpoch(), &job)) << "each attempt reports it";
  EXPECT_TRUE(TakeWarnings(Warning("b"), absl::UnixEpoch(), &job));
  EXPECT_THAT(job.warnings(), ElementsAre("a", "b"));
  EXPECT_EQ(job.revision(), 2);
  ASSERT_EQ(job.events_size(), 2);
  EXPECT_EQ(job.events(0).message(), "warning: a");
}

TEST(JobWarnings, LimitsNumberAndLength) {
  v1::Job job;
  for (int i = 0; i < 2 * kMaxJobWarnings; ++i)
    TakeWarnings(Warning(absl::StrCat(i, std::string(2 * kMaxJobWarningBytes, 'x'))), absl::UnixEpoch(),
                 &job);
  ASSERT_EQ(job.warnings_size(), kMaxJobWarnings);
  EXPECT_EQ(job.warnings(0).size(), kMaxJobWarningBytes);
  EXPECT_EQ(job.events_size(), kMaxJobWarnings);
}

}  // namespace
}  // namespace fsdpd
