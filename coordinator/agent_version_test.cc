#include "coordinator/agent_version.h"

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
            "the agent is of version 0.9.1 and the coordinator of 1.4.2: agents of 1.x are taken; upgrade "
            "the agent");
  EXPECT_EQ(
      CheckAgentVersion("2.0.0", "1.4.2").message(),
      "the agent is of version 2.0.0 and the coordinator of 1.4.2: agents of 1.x are taken; upgrade the "
      "coordinator first");
}

}  // namespace
}  // namespace fsdpd
