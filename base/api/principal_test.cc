#include "base/api/principal.h"

#include <gtest/gtest.h>

namespace fsdpd {
namespace {

TEST(Principal, RolesRoundTrip) {
  for (const PrincipalRole role : kPrincipalRoles) EXPECT_EQ(RoleNamed(NameOf(role)), role);
  EXPECT_EQ(RoleNamed("root"), std::nullopt);
  EXPECT_EQ(RoleNamed(""), std::nullopt);
}

TEST(Principal, ChecksNames) {
  for (const char* name : {"alice", "a.b_c-d@example.org", "ci-7"})
    EXPECT_TRUE(CheckPrincipalName(name).ok()) << name;
  for (const std::string& name : {std::string(), std::string("a b"), std::string("a\"b"), std::string("#a"),
                                  std::string("a\n"), std::string(65, 'a')}) {
    EXPECT_FALSE(CheckPrincipalName(name).ok()) << name;
  }
}

}  // namespace
}  // namespace fsdpd
