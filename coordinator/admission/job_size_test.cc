#include "coordinator/admission/job_size.h"

#include <gtest/gtest.h>

#include <string>

namespace fsdpd {
namespace {

TEST(JobSize, NamesTheLargestFieldOfTheSpec) {
  v1::JobSpec spec;
  spec.set_name("tiny");
  spec.mutable_model()->set_preset("tiny");
  spec.mutable_data()->set_sequence_length(128);
  for (int i = 0; i < 10; ++i) spec.mutable_data()->add_tokens()->set_path("/data/" + std::string(100, 'x'));
  spec.add_env()->set_name("A");
  const Violation violation = TooLarge(spec, "it has 12 bytes");
  EXPECT_EQ(violation.field, "data.tokens");
  EXPECT_EQ(violation.reason, "is the largest field of a job that is too large: it has 12 bytes");
  spec.mutable_env(0)->set_value(std::string(5000, 'x'));
  EXPECT_EQ(TooLarge(spec, "").field, "env");
}

TEST(JobSize, EmptySpecHasNoLargestField) { EXPECT_EQ(TooLarge(v1::JobSpec(), "").field, ""); }

}  // namespace
}  // namespace fsdpd
