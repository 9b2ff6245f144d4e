#include "base/person.h"

#include <gtest/gtest.h>

namespace fsdpd {
namespace {

TEST(Person, RolesAreNamedBothWays) {
  for (const PersonRole role : kPersonRoles) EXPECT_EQ(RoleNamed(NameOf(role)), role);
  EXPECT_EQ(RoleNamed("root"), std::nullopt);
  EXPECT_EQ(RoleNamed(""), std::nullopt);
}

TEST(Person, ANameIsOneWordThatIsSafeInLogs) {
  for (const char* name : {"alice", "a.b_c-d@example.org", "ci-7"})
    EXPECT_TRUE(CheckPersonName(name).ok()) << name;
  for (const std::string& name : {std::string(), std::string("a b"), std::string("a\"b"), std::string("#a"),
                                  std::string("a\n"), std::string(65, 'a')}) {
    EXPECT_FALSE(CheckPersonName(name).ok()) << name;
  }
}

}  // namespace
}  // namespace fsdpd
