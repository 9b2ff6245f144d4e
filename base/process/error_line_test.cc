#include "base/process/error_line.h"

#include <gtest/gtest.h>

namespace fsdpd {
namespace {

TEST(ErrorLine, AddsTheIdToTheFirstLine) {
  EXPECT_EQ(WithErrorId("no job 'x'", "JOB_NOT_FOUND"), "no job 'x' [JOB_NOT_FOUND]");
  EXPECT_EQ(WithErrorId("first\nsecond\n", "INTERNAL"), "first [INTERNAL]\nsecond\n");
  EXPECT_EQ(WithErrorId("", "INTERNAL"), " [INTERNAL]");
}

TEST(ErrorLine, KeepsTheIdOfTheMessage) {
  for (const char* message : {"a.pem: expired [INVALID_CERTIFICATE]", "name: is empty [name_is_label]\nmore"})
    EXPECT_EQ(WithErrorId(message, "FILE_ERROR"), message);
}

TEST(ErrorLine, OtherBracketsAreNotAnId) {
  EXPECT_EQ(WithErrorId("cannot connect to [::1]", "UNAVAILABLE"), "cannot connect to [::1] [UNAVAILABLE]");
  EXPECT_EQ(WithErrorId("unknown field data.tokens[1]", "INVALID_FLAG"),
            "unknown field data.tokens[1] [INVALID_FLAG]");
}

}  // namespace
}  // namespace fsdpd
