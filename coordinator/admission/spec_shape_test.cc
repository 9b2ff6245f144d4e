#include "coordinator/admission/spec_shape.h"

#include <gmock/gmock.h>
#include <google/protobuf/unknown_field_set.h>
#include <gtest/gtest.h>

namespace fsdpd {
namespace {

using ::testing::HasSubstr;

TEST(SpecShape, OrdinarySpecHasNoViolation) {
  v1::JobSpec spec;
  spec.mutable_fsdp()->set_strategy(v1::STRATEGY_NO_SHARD);
  spec.mutable_data()->add_tokens()->set_path("a");
  EXPECT_TRUE(CheckSpecShape(spec).empty());
}

TEST(SpecShape, ReportsUnnamedEnumNumbers) {
  v1::JobSpec spec;
  spec.mutable_fsdp()->mutable_outer()->set_strategy(static_cast<v1::Strategy>(99));
  spec.mutable_data()->add_tokens();
  spec.mutable_data()->add_tokens()->set_type(static_cast<v1::TokenType>(7));
  const Violations violations = CheckSpecShape(spec);
  ASSERT_EQ(violations.size(), 2u);
  EXPECT_EQ(violations[0].field, "data.tokens[1].type");
  EXPECT_EQ(violations[1].field, "fsdp.outer.strategy");
  EXPECT_THAT(violations[1].fix, HasSubstr("STRATEGY_NO_SHARD"));
}

TEST(SpecShape, ReportsPathOfUnknownField) {
  v1::JobSpec spec;
  auto* train = spec.mutable_train();
  train->GetReflection()->MutableUnknownFields(train)->AddVarint(500, 1);
  const Violations violations = CheckSpecShape(spec);
  ASSERT_EQ(violations.size(), 1u);
  EXPECT_EQ(violations[0].field, "train");
  EXPECT_THAT(violations[0].reason, HasSubstr("500"));
}

}  // namespace
}  // namespace fsdpd
