#include "base/seeds.h"

#include <gtest/gtest.h>

namespace fsdpd {
namespace {

class SeedsTest : public testing::Test {
 protected:
  void SetUp() override { unsetenv("FSDPD_SEED_FACTOR"); }
  void TearDown() override { unsetenv("FSDPD_SEED_FACTOR"); }

  static int With(const char* factor, int at_commit) {
    setenv("FSDPD_SEED_FACTOR", factor, /*overwrite=*/1);
    return Seeds(at_commit);
  }
};

TEST_F(SeedsTest, UseTheFactorOfTheEnvironment) {
  EXPECT_EQ(Seeds(300), 300);
  EXPECT_EQ(With("20", 300), 6000);
  EXPECT_EQ(With("0.1", 300), 30);
}

TEST_F(SeedsTest, AreAtLeastOne) { EXPECT_EQ(With("0.001", 60), 1); }

TEST_F(SeedsTest, InvalidFactorFails) {
  for (const char* factor : {"", "many", "10x", "0", "-1", "nan", "1e9"}) {
    EXPECT_DEATH(With(factor, 300), "check failed") << factor;
  }
}

}  // namespace
}  // namespace fsdpd
