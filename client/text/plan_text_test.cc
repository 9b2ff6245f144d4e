#include "client/text/plan_text.h"

#include <absl/strings/match.h>
#include <gtest/gtest.h>

namespace fsdpd {
namespace {

// The MFU may exceed 100%, so the text must name the peak that it is relative to.
TEST(PlanText, MfuOfFp8NamesBf16Peak) {
  v1::Plan plan;
  plan.mutable_prediction()->set_mfu(1.125);
  plan.mutable_resolved()->mutable_precision()->set_compute(v1::DTYPE_FP8);
  EXPECT_TRUE(absl::StrContains(PlanText(plan, false), "  mfu            112.5% of the bf16 peak\n"));
  plan.mutable_resolved()->mutable_precision()->set_compute(v1::DTYPE_BF16);
  EXPECT_TRUE(absl::StrContains(PlanText(plan, false), "  mfu            112.5%\n"));
}

}  // namespace
}  // namespace fsdpd
