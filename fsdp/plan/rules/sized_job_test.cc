#include "fsdp/plan/rules/sized_job.h"

#include <gtest/gtest.h>

#include "fsdp/plan/rules/rules.h"

namespace fsdpd {
namespace {

v1::JobSpec TinyJob() {
  v1::JobSpec job;
  job.set_name("tiny");
  job.mutable_model()->set_preset("tiny");
  job.mutable_data()->mutable_synthetic();
  job.mutable_data()->set_sequence_length(128);
  job.mutable_train()->set_steps(10);
  return job;
}

TEST(SizedJob, DropsViolationsUnrelatedToMemory) {
  v1::JobSpec job = TinyJob();
  job.set_name("Tiny");
  job.mutable_data()->clear_synthetic();
  job.mutable_train()->set_steps(-1);
  job.mutable_optimizer()->mutable_adamw()->set_lr(-1);
  job.mutable_optimizer()->set_clip_norm(-1);
  job.mutable_schedule()->mutable_wsd();
  job.mutable_restart()->set_max_attempts(1000);
  std::vector<std::string> fields;
  for (const Violation& violation : CheckJob(job)) fields.push_back(violation.field);
  EXPECT_GE(fields.size(), 6u);
  const auto sized = SizedJob(job, fields);
  ASSERT_TRUE(sized.has_value());
  EXPECT_TRUE(CheckJob(*sized).empty());
}

TEST(SizedJob, KeepsRanksPerSample) {
  v1::JobSpec job = TinyJob();
  job.mutable_parallel()->set_context(2);
  EXPECT_EQ(SizedJob(job, {"name"})->parallel().context(), 2);
  job.mutable_parallel()->set_tensor(4);
  EXPECT_EQ(SizedJob(job, {"name"})->parallel().tensor(), 4);
  EXPECT_FALSE(SizedJob(job, {"parallel.tensor"}).has_value());
}

TEST(SizedJob, IsEmptyIfViolationAffectsMemory) {
  for (const char* field : {"model.preset", "data.sequence_length", "train.micro_batch", "resources",
                            "optimizer", "optimizer.sgd.momentum", "precision.moments", "fsdp.outer.size",
                            "train.frozen[0]", "parallel.context"}) {
    EXPECT_FALSE(SizedJob(TinyJob(), {"name", field}).has_value()) << field;
  }
}

}  // namespace
}  // namespace fsdpd
