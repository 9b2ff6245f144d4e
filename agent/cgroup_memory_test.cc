#include "agent/cgroup_memory.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/temp_dir.h"

namespace fsdpd {
namespace {

// What version 1 writes where nothing limits.
constexpr char kUnlimited[] = "9223372036854771712\n";

class CgroupMemoryTest : public testing::Test {
 protected:
  void Write(const std::string& path, const std::string& text) {
    const std::filesystem::path file = dir_.File(path);
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  std::optional<int64_t> Limit() { return CgroupMemoryLimit(dir_.path()); }

  TempDir dir_;
};

TEST_F(CgroupMemoryTest, WithoutGroupsNothingLimits) { EXPECT_EQ(Limit(), std::nullopt); }

TEST_F(CgroupMemoryTest, NoLimitIsNone) {
  Write("proc/self/cgroup", "0::/user.slice\n");
  Write("sys/fs/cgroup/user.slice/memory.max", "max\n");
  EXPECT_EQ(Limit(), std::nullopt);
}

TEST_F(CgroupMemoryTest, OfAContainerIsAtTheRootThatItSees) {
  Write("proc/self/cgroup", "0::/\n");
  Write("sys/fs/cgroup/memory.max", "4294967296\n");
  EXPECT_EQ(Limit(), int64_t{4} << 30);
}

TEST_F(CgroupMemoryTest, OfAServiceIsItsOwnMemoryMax) {
  Write("proc/self/cgroup", "0::/system.slice/fsdpd-agent.service\n");
  Write("sys/fs/cgroup/system.slice/memory.max", "max\n");
  Write("sys/fs/cgroup/system.slice/fsdpd-agent.service/memory.max", "8589934592\n");
  EXPECT_EQ(Limit(), int64_t{8} << 30);
}

TEST_F(CgroupMemoryTest, TheSmallestOfAllAboveBinds) {
  Write("proc/self/cgroup", "0::/system.slice/slurmstepd.scope/job_7/step_0\n");
  Write("sys/fs/cgroup/system.slice/slurmstepd.scope/job_7/memory.max", "1000\n");
  Write("sys/fs/cgroup/system.slice/slurmstepd.scope/job_7/step_0/memory.max", "2000\n");
  EXPECT_EQ(Limit(), 1000);
}

TEST_F(CgroupMemoryTest, Version1OfAPodIsWhereItsMountIs) {
  Write("proc/self/cgroup",
        "12:pids:/kubepods/pod1/abc\n5:memory:/kubepods/pod1/abc\n1:name=systemd:/kubepods\n");
  Write("sys/fs/cgroup/memory/memory.limit_in_bytes", "4294967296\n");
  Write("sys/fs/cgroup/pids/memory.limit_in_bytes", "1\n");
  EXPECT_EQ(Limit(), int64_t{4} << 30);
}

TEST_F(CgroupMemoryTest, Version1OnAHostIsBelowTheMount) {
  Write("proc/self/cgroup", "4:cpuset,memory:/slurm/uid_0/job_7\n0::/\n");
  Write("sys/fs/cgroup/memory/memory.limit_in_bytes", kUnlimited);
  Write("sys/fs/cgroup/memory/slurm/memory.limit_in_bytes", kUnlimited);
  Write("sys/fs/cgroup/memory/slurm/uid_0/job_7/memory.limit_in_bytes", "3000\n");
  EXPECT_EQ(Limit(), 3000);
}

TEST_F(CgroupMemoryTest, AGroupOutsideOfTheContainersViewLeadsNowhere) {
  Write("proc/self/cgroup", "0::/../../other\n");
  Write("sys/other/memory.max", "1\n");
  Write("other/memory.max", "1\n");
  EXPECT_EQ(Limit(), std::nullopt);
}

}  // namespace
}  // namespace fsdpd
