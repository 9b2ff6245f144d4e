#include "fsdp/engine/local_job.h"

#include <gtest/gtest.h>

namespace fsdpd {
namespace {

// Warnings stood among the faults that refuse a job, as if they did.
TEST(LocalJob, ARefusalNamesWhatRefusesAlone) {
  v1::JobSpec job;
  job.set_name("Not A Name");
  job.mutable_model()->set_preset("tiny");
  job.mutable_data()->mutable_synthetic();
  job.mutable_data()->set_sequence_length(8);
  job.mutable_train()->set_steps(1);
  job.mutable_optimizer()->mutable_adamw()->set_lr(3);  // A warning.
  const std::string refusal(PlanOfJob(job).status().message());
  EXPECT_EQ(refusal.find("name: "), 0u) << refusal;
  EXPECT_EQ(refusal.find("diverges"), std::string::npos) << refusal;
}

}  // namespace
}  // namespace fsdpd
