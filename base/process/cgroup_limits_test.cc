#include "base/process/cgroup_limits.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/temp_dir.h"

namespace fsdpd {
namespace {

// Value that cgroup v1 has without a limit.
constexpr char kUnlimited[] = "9223372036854771712\n";

class CgroupLimitsTest : public testing::Test {
 protected:
  void Write(const std::string& path, const std::string& text) {
    const std::filesystem::path file = dir_.File(path);
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  std::optional<int64_t> Limit() { return CgroupMemoryLimit(dir_.path()); }

  TempDir dir_;
};

TEST_F(CgroupLimitsTest, NoCgroupsNoLimit) { EXPECT_EQ(Limit(), std::nullopt); }

TEST_F(CgroupLimitsTest, MaxIsNoLimit) {
  Write("proc/self/cgroup", "0::/user.slice\n");
  Write("sys/fs/cgroup/user.slice/memory.max", "max\n");
  EXPECT_EQ(Limit(), std::nullopt);
}

TEST_F(CgroupLimitsTest, ContainerLimitIsAtTheRoot) {
  Write("proc/self/cgroup", "0::/\n");
  Write("sys/fs/cgroup/memory.max", "4294967296\n");
  EXPECT_EQ(Limit(), int64_t{4} << 30);
}

TEST_F(CgroupLimitsTest, ServiceLimitIsMemoryMax) {
  Write("proc/self/cgroup", "0::/system.slice/fsdpd-agent.service\n");
  Write("sys/fs/cgroup/system.slice/memory.max", "max\n");
  Write("sys/fs/cgroup/system.slice/fsdpd-agent.service/memory.max", "8589934592\n");
  EXPECT_EQ(Limit(), int64_t{8} << 30);
}

TEST_F(CgroupLimitsTest, LowestLimitOfAncestorsApplies) {
  Write("proc/self/cgroup", "0::/system.slice/slurmstepd.scope/job_7/step_0\n");
  Write("sys/fs/cgroup/system.slice/slurmstepd.scope/job_7/memory.max", "1000\n");
  Write("sys/fs/cgroup/system.slice/slurmstepd.scope/job_7/step_0/memory.max", "2000\n");
  EXPECT_EQ(Limit(), 1000);
}

TEST_F(CgroupLimitsTest, V1PodLimitIsAtTheMount) {
  Write("proc/self/cgroup",
        "12:pids:/kubepods/pod1/abc\n5:memory:/kubepods/pod1/abc\n1:name=systemd:/kubepods\n");
  Write("sys/fs/cgroup/memory/memory.limit_in_bytes", "4294967296\n");
  Write("sys/fs/cgroup/pids/memory.limit_in_bytes", "1\n");
  EXPECT_EQ(Limit(), int64_t{4} << 30);
}

TEST_F(CgroupLimitsTest, V1HostLimitIsBelowTheMount) {
  Write("proc/self/cgroup", "4:cpuset,memory:/slurm/uid_0/job_7\n0::/\n");
  Write("sys/fs/cgroup/memory/memory.limit_in_bytes", kUnlimited);
  Write("sys/fs/cgroup/memory/slurm/memory.limit_in_bytes", kUnlimited);
  Write("sys/fs/cgroup/memory/slurm/uid_0/job_7/memory.limit_in_bytes", "3000\n");
  EXPECT_EQ(Limit(), 3000);
}

TEST_F(CgroupLimitsTest, IgnoresPathsOutsideOfTheContainer) {
  Write("proc/self/cgroup", "0::/../../other\n");
  Write("sys/other/memory.max", "1\n");
  Write("other/memory.max", "1\n");
  EXPECT_EQ(Limit(), std::nullopt);
}

TEST_F(CgroupLimitsTest, PageCacheCountsAsLeft) {
  EXPECT_FALSE(TightestCgroup(dir_.path()).has_value());
  Write("proc/self/cgroup", "0::/system.slice/fsdpd-agent.service\n");
  Write("sys/fs/cgroup/system.slice/memory.max", "max\n");
  Write("sys/fs/cgroup/system.slice/memory.current", "7000\n");
  EXPECT_FALSE(TightestCgroup(dir_.path()).has_value());
  const std::string service = "sys/fs/cgroup/system.slice/fsdpd-agent.service/";
  Write(service + "memory.max", "8000\n");
  Write(service + "memory.current", "6000\n");
  Write(service + "memory.stat", "anon 3500\nfile 2500\nshmem 500\ninactive_file 1500\nactive_file 500\n");
  const std::optional<CgroupMemory> tightest = TightestCgroup(dir_.path());
  ASSERT_TRUE(tightest.has_value());
  EXPECT_EQ(tightest->limit_bytes, 8000);
  EXPECT_EQ(tightest->left_bytes, 4000);
}

TEST_F(CgroupLimitsTest, TightestCgroupHasTheLeastLeft) {
  Write("proc/self/cgroup", "4:cpuset,memory:/slurm/job_7\n0::/\n");
  Write("sys/fs/cgroup/memory/slurm/memory.limit_in_bytes", "9000\n");
  Write("sys/fs/cgroup/memory/slurm/memory.usage_in_bytes", "8000\n");
  Write("sys/fs/cgroup/memory/slurm/memory.stat", "cache 1\ntotal_inactive_file 100\ntotal_active_file 10\n");
  Write("sys/fs/cgroup/memory/slurm/job_7/memory.limit_in_bytes", "4000\n");
  Write("sys/fs/cgroup/memory/slurm/job_7/memory.usage_in_bytes", "1000\n");
  const std::optional<CgroupMemory> tightest = TightestCgroup(dir_.path());
  ASSERT_TRUE(tightest.has_value());
  EXPECT_EQ(tightest->limit_bytes, 9000);
  EXPECT_EQ(tightest->left_bytes, 1110);
}

TEST_F(CgroupLimitsTest, TightestTasksHasTheFewestLeft) {
  EXPECT_FALSE(TightestCgroupOfTasks(dir_.path()).has_value());
  Write("proc/self/cgroup", "0::/system.slice/fsdpd-agent.service\n");
  Write("sys/fs/cgroup/system.slice/pids.max", "40\n");
  Write("sys/fs/cgroup/system.slice/pids.current", "38\n");
  Write("sys/fs/cgroup/system.slice/fsdpd-agent.service/pids.max", "30\n");
  Write("sys/fs/cgroup/system.slice/fsdpd-agent.service/pids.current", "20\n");
  const std::optional<CgroupTasks> tightest = TightestCgroupOfTasks(dir_.path());
  ASSERT_TRUE(tightest.has_value());
  EXPECT_EQ(tightest->limit, 40);
  EXPECT_EQ(tightest->running, 38);
}

TEST_F(CgroupLimitsTest, V1TasksUseTheirOwnHierarchy) {
  Write("proc/self/cgroup", "12:pids:/kubepods/pod1\n5:memory:/kubepods/pod1\n");
  Write("sys/fs/cgroup/pids/kubepods/pod1/pids.max", "100\n");
  Write("sys/fs/cgroup/pids/kubepods/pod1/pids.current", "100\n");
  Write("sys/fs/cgroup/memory/kubepods/pod1/pids.max", "1\n");
  Write("sys/fs/cgroup/memory/kubepods/pod1/pids.current", "1\n");
  const std::optional<CgroupTasks> tightest = TightestCgroupOfTasks(dir_.path());
  ASSERT_TRUE(tightest.has_value());
  EXPECT_EQ(tightest->limit, 100);
  EXPECT_EQ(tightest->running, 100);
}

}  // namespace
}  // namespace fsdpd
