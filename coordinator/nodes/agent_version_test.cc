#include "coordinator/nodes/agent_version.h"

#include <gtest/gtest.h>

namespace fsdpd {
namespace {

TEST(AgentVersion, AcceptsEqualMajorVersions) {
  for (const char* agent : {"1.4.2", "1.0.0", "1.99.0", "1"})
    EXPECT_TRUE(CheckAgentVersion(agent, "1.4.2").ok()) << agent;
}

TEST(AgentVersion, AcceptsMissingVersion) {
  for (const char* agent : {"", "dev", ".1"}) EXPECT_TRUE(CheckAgentVersion(agent, "1.4.2").ok()) << agent;
}

TEST(AgentVersion, RejectsOtherMajorVersionWithFix) {
  EXPECT_EQ(CheckAgentVersion("0.9.1", "1.4.2").message(),
            "agent: incompatible version (got 0.9.1, want 1.x for coordinator 1.4.2); upgrade the agent");
  EXPECT_EQ(CheckAgentVersion("2.0.0", "1.4.2").message(),
            "agent: incompatible version (got 2.0.0, want 1.x for coordinator 1.4.2); upgrade the "
            "coordinator first");
}

}  // namespace
}  // namespace fsdpd
