#include "coordinator/request/errors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "proto/fsdpd/v1/coordinator.pb.h"

namespace fsdpd {
namespace {

using ::testing::HasSubstr;

template <typename Detail>
bool Find(const grpc::Status& status, Detail* found) {
  google::rpc::Status wire;
  EXPECT_TRUE(wire.ParseFromString(status.error_details()));
  EXPECT_EQ(wire.code(), status.error_code());
  EXPECT_EQ(wire.message(), status.error_message());
  for (const auto& any : wire.details()) {
    if (any.UnpackTo(found)) return true;
  }
  return false;
}

std::string ReasonOf(const grpc::Status& status) {
  google::rpc::ErrorInfo info;
  EXPECT_TRUE(Find(status, &info));
  EXPECT_EQ(info.domain(), "fsdpd");
  return info.reason();
}

Violation Fault(ViolationLevel level, const std::string& field) {
  Violation v;
  v.level = level;
  v.field = field;
  v.reason = field + " is wrong.";
  v.fix = "Write 1.";
  return v;
}

TEST(Errors, OkStaysOk) { EXPECT_TRUE(ToGrpc(absl::OkStatus()).ok()); }

TEST(Errors, EveryCodeKeepsItsNumberAndHasAReason) {
  for (int code = 1; code <= 16; ++code) {
    const grpc::Status status = ToGrpc(absl::Status(static_cast<absl::StatusCode>(code), "why"));
    EXPECT_EQ(static_cast<int>(status.error_code()), code);
    EXPECT_EQ(status.error_message(), "why");
    EXPECT_FALSE(ReasonOf(status).empty());
  }
}

TEST(Errors, BadSpecListsOnlyErrors) {
  const grpc::Status status =
      ToGrpc(BadSpec({Fault(ViolationLevel::kError, "train.steps"), Fault(ViolationLevel::kWarn, "telemetry"),
                      Fault(ViolationLevel::kError, "name")}));
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  google::rpc::BadRequest bad;
  ASSERT_TRUE(Find(status, &bad));
  ASSERT_EQ(bad.field_violations_size(), 2);
  EXPECT_EQ(bad.field_violations(0).field(), "train.steps");
  EXPECT_EQ(bad.field_violations(0).description(), "train.steps is wrong.");
  EXPECT_EQ(bad.field_violations(1).field(), "name");
  EXPECT_EQ(ReasonOf(status), "INVALID_SPEC");
  EXPECT_EQ(status.error_message(),
            "the job spec has 2 errors; the first: train.steps: train.steps is wrong.");
  v1::SpecViolations violations;
  ASSERT_TRUE(Find(status, &violations));
  EXPECT_EQ(violations.violations(1).fix(), "Write 1.");  // Separate from the reason.
  EXPECT_EQ(violations.more(), 0);
}

TEST(Errors, ListsEachRuleOnce) {
  Violations violations(3, Fault(ViolationLevel::kError, "f"));
  violations[0].rule = violations[2].rule = "steps_positive";
  violations[1].rule = "name_is_label";
  google::rpc::ErrorInfo info;
  ASSERT_TRUE(Find(ToGrpc(BadSpec(violations)), &info));
  EXPECT_EQ(info.metadata().at("rules"), "name_is_label,steps_positive");
}

TEST(Errors, SixtyViolationsFitInMetadata) {
  for (const char* text : {"x", "\xc3\xa9"}) {
    Violations violations;
    for (int i = 0; i < 60; ++i) {
      violations.push_back(Fault(ViolationLevel::kError, "data.tokens[" + std::to_string(i) + "].path"));
      violations.back().rule = "a_rule_of_a_name_that_is_rather_long_" + std::to_string(i);
      violations.back().fix = "Write " + std::to_string(i);
    }
    violations[0].reason.clear();
    for (int i = 0; i < 100'000; ++i) violations[0].reason += text;  // It quotes a value.
    const grpc::Status status = ToGrpc(BadSpec(violations));
    EXPECT_LT(status.error_details().size(), 5000u);
    EXPECT_LT(status.error_message().size(), 350u);
    EXPECT_THAT(status.error_message(), HasSubstr("60 errors"));
    v1::SpecViolations details;
    google::rpc::BadRequest bad;
    ASSERT_TRUE(Find(status, &details));
    ASSERT_TRUE(Find(status, &bad));
    EXPECT_GE(details.violations_size(), 10);
    EXPECT_EQ(details.violations_size() + details.more(), 60);
    EXPECT_EQ(bad.field_violations_size(), details.violations_size() + 1);
    EXPECT_THAT(bad.field_violations().rbegin()->description(),
                HasSubstr(std::to_string(details.more()) + " more"));
  }
}

TEST(Errors, WrongStateNamesItsSubject) {
  const grpc::Status status = ToGrpc(WrongState("JOB_NOT_LAUNCHED", "jobs/a", "job a has no logs yet"));
  google::rpc::PreconditionFailure failure;
  ASSERT_TRUE(Find(status, &failure));
  EXPECT_EQ(failure.violations(0).subject(), "jobs/a");
  EXPECT_EQ(ReasonOf(status), "JOB_NOT_LAUNCHED");
}

TEST(Errors, OnlyUnavailableHasRetryInfo) {
  google::rpc::RetryInfo retry;
  ASSERT_TRUE(Find(ToGrpc(absl::UnavailableError("later")), &retry));
  EXPECT_GT(retry.retry_delay().seconds(), 0);
  EXPECT_FALSE(Find(ToGrpc(JobNotFound("x")), &retry));
  EXPECT_EQ(ReasonOf(ToGrpc(JobNotFound("x"))), "JOB_NOT_FOUND");
  EXPECT_EQ(ReasonOf(ToGrpc(NodeNotFound("x"))), "NODE_NOT_FOUND");
  EXPECT_EQ(ReasonOf(ToGrpc(AttemptNotFound("x", 2))), "ATTEMPT_NOT_FOUND");
}

TEST(Errors, BadFieldNamesTheField) {
  google::rpc::BadRequest bad;
  ASSERT_TRUE(Find(ToGrpc(BadField("page_size", "must not be negative")), &bad));
  EXPECT_EQ(bad.field_violations(0).field(), "page_size");
}

}  // namespace
}  // namespace fsdpd
