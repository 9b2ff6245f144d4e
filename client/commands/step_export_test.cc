#include "client/commands/step_export.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "client/text/step_table.h"

namespace fsdpd {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

v1::StepRecord Step() {
  v1::StepRecord step;
  step.set_step(12);
  step.set_attempt(2);
  step.set_unix_nanos(1'800'000'012'500'000'000);
  step.set_loss(2.25);
  step.set_grad_norm(std::numeric_limits<double>::quiet_NaN());
  step.set_step_seconds(0.5);
  step.set_tokens(1024);
  step.set_communication_seconds(0.25);
  step.set_exposed_seconds(0.0625);
  return step;
}

// tests/integration/test_steps.py reads complete files with an independent reader.
TEST(StepExport, ChecksumMatchesRfc) {
  EXPECT_EQ(Crc32c("123456789"), 0xe3069283u);
  EXPECT_EQ(Crc32c(std::string(32, '\0')), 0x8a9136aau);  // RFC 3720, B.4.
  EXPECT_EQ(Crc32c(""), 0u);
}

TEST(StepExport, WandbStepHasOwnFieldsAndValidJson) {
  const std::string line = WandbStep(Step(), 1'800'000'000'000'000'000);
  EXPECT_THAT(
      line, StartsWith("{\"_step\":12,\"_timestamp\":1800000012.500000,\"_runtime\":12.500000,\"attempt\":2,"
                       "\"train/loss\":2.25,\"train/grad_norm\":\"NaN\","));
  EXPECT_THAT(line, HasSubstr("\"time/tokens_per_second\":2048,"));
  EXPECT_THAT(line, HasSubstr("\"time/overlap\":0.75,"));
  EXPECT_THAT(line, ::testing::Not(HasSubstr("eval/loss")));
  EXPECT_THAT(line, EndsWith("}\n"));
}

TEST(StepExport, CsvRowMatchesHeader) {
  const std::string header = StepCsvHeader(), row = StepCsvRow(Step());
  EXPECT_EQ(std::count(header.begin(), header.end(), ','), std::count(row.begin(), row.end(), ','));
  EXPECT_THAT(row, StartsWith("12,2,1800000012.500000,2.25,,nan,"));
}

TEST(StepExport, TableRowMarksMissingValues) {
  v1::StepRecord step = Step();
  EXPECT_THAT(StepTableRow(step),
              ::testing::ElementsAre("12", "2", "2.2500", "-", "nan", "0", "500 ms", "2048", "75%", "0 B"));
  EXPECT_EQ(StepTableRow(step).size(), StepTableHeader().size());
  step.set_skipped(true);
  step.set_evaluation_loss(3);
  step.clear_communication_seconds();
  EXPECT_EQ(StepTableRow(step)[0], "12 skipped");
  EXPECT_EQ(StepTableRow(step)[3], "3.0000");
  EXPECT_EQ(StepTableRow(step)[8], "-");
}

}  // namespace
}  // namespace fsdpd
