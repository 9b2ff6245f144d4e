#include "coordinator/store/small_record.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace fsdpd {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;

v1::Job FailedJob() {
  v1::Job job;
  job.set_id("a");
  job.mutable_spec()->set_name(std::string(2000, 'n'));
  job.set_reason(std::string(2000, 'r'));
  job.mutable_failure()->set_error(std::string(2000, 'e'));
  for (int i = 0; i < 40; ++i) job.mutable_failure()->add_log_tail(std::string(16'000, 'l'));
  job.add_events()->set_message(std::string(2000, 'm'));
  job.add_checkpoints()->set_path(std::string(2000, 'p'));
  job.add_positions()->set_position("step 3");
  return job;
}

TEST(SmallRecord, DropsLogLinesFirstAndStatesHowMany) {
  const v1::Job whole = FailedJob(), small = SmallRecord(whole, RecordSize::kWithoutLogs);
  ASSERT_EQ(small.failure().log_tail_size(), 1);
  EXPECT_EQ(small.failure().log_tail(0),
            "[fsdpd-coordinator: 40 log lines dropped: the job record was too large to store]");
  EXPECT_EQ(small.failure().error(), whole.failure().error());
  EXPECT_EQ(small.reason(), whole.reason());
}

TEST(SmallRecord, ThenShortensDiagnosticTexts) {
  const v1::Job whole = FailedJob(), small = SmallRecord(whole, RecordSize::kShortTexts);
  EXPECT_THAT(small.failure().error(), EndsWith(" bytes dropped: the job record was too large to store]"));
  for (const std::string& text : {small.failure().error(), small.reason(), small.events(0).message()}) {
    EXPECT_LT(text.size(), 2 * kShortTextBytes);
    EXPECT_THAT(text, HasSubstr(" bytes dropped: "));
  }
  EXPECT_EQ(small.positions_size(), 0);
  EXPECT_EQ(small.spec().name(), whole.spec().name());
  EXPECT_EQ(small.checkpoints(0).path(), whole.checkpoints(0).path());
}

TEST(SmallRecord, DoesNotChangeSmallRecord) {
  v1::Job job;
  job.set_reason("done");
  job.mutable_failure()->add_log_tail("one line");
  EXPECT_EQ(SmallRecord(job, RecordSize::kShortTexts).SerializeAsString(), job.SerializeAsString());
}

}  // namespace
}  // namespace fsdpd
