#include "fsdp/plan/spec/field_path.h"

#include <gtest/gtest.h>

#include "proto/fsdpd/v1/job.pb.h"

namespace fsdpd {
namespace {

TEST(FieldPath, FindsFieldsOfMessagesThatAreSet) {
  v1::JobSpec job;
  EXPECT_EQ(FindField(job, "fsdp.outer.size").parent, nullptr);
  job.mutable_fsdp()->mutable_outer();
  EXPECT_EQ(FindField(job, "fsdp.outer.size").parent, &job.fsdp().outer());
  EXPECT_FALSE(FindField(job, "fsdp.outer.size").is_set());
  job.mutable_fsdp()->mutable_outer()->set_size(0);
  EXPECT_TRUE(FindField(job, "fsdp.outer.size").is_set());
}

TEST(FieldPath, SetsOnlyUnsetFieldsFromText) {
  v1::JobSpec job;
  EXPECT_FALSE(SetIfUnset(&job, "optimizer.adamw.lr", "3e-4")) << "no message";
  job.mutable_optimizer()->mutable_adamw();
  job.mutable_fsdp();
  EXPECT_TRUE(SetIfUnset(&job, "optimizer.adamw.lr", "3e-4"));
  EXPECT_FALSE(SetIfUnset(&job, "optimizer.adamw.lr", "1")) << "set already";
  EXPECT_TRUE(SetIfUnset(&job, "fsdp.strategy", "optim_grads"));
  EXPECT_TRUE(SetIfUnset(&job, "fsdp.keep_gathered", "true"));
  EXPECT_TRUE(SetIfUnset(&job, "fsdp.recompute_layers", "7"));
  EXPECT_TRUE(SetIfUnset(&job, "name", "a"));
  SetField(&job, "parallel.tensor", "2");
  EXPECT_EQ(job.parallel().tensor(), 2);
  EXPECT_EQ(job.optimizer().adamw().lr(), 3e-4);
  EXPECT_EQ(job.fsdp().strategy(), v1::STRATEGY_OPTIM_GRADS);
  EXPECT_TRUE(job.fsdp().keep_gathered());
  EXPECT_EQ(job.fsdp().recompute_layers(), 7);
  EXPECT_EQ(job.name(), "a");
}

}  // namespace
}  // namespace fsdpd
