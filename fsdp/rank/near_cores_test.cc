#include "fsdp/rank/near_cores.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "base/temp_dir.h"

namespace fsdpd {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// A fake sysfs of a machine.
class Machine {
 public:
  Machine& File(const std::string& path, const std::string& text) {
    const std::filesystem::path file = std::filesystem::path(dir_.path()) / path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text << "\n";
    return *this;
  }
  Machine& Gpu(const std::string& node) { return File("bus/pci/devices/0000:9a:00.0/numa_node", node); }
  // Two processors with four cores of two threads each.
  Machine& TwoNodes() {
    File("devices/system/node/online", "0-1");
    File("devices/system/node/node0/cpulist", "0-3,8-11");
    return File("devices/system/node/node1/cpulist", "4-7,12-15");
  }

  NearCores Near(const std::vector<int>& allowed) const {
    return FindNearCores(dir_.path(), "0000:9A:00.0", allowed);
  }

 private:
  TempDir dir_;
};

std::vector<int> Cores(int end) {
  std::vector<int> cores;
  for (int core = 0; core < end; ++core) cores.push_back(core);
  return cores;
}

TEST(NearCores, ReturnsCoresOfGpusNode) {
  Machine machine;
  const NearCores near = machine.TwoNodes().Gpu("1").Near(Cores(16));
  EXPECT_EQ(near.node, 1);
  EXPECT_THAT(near.cores, ElementsAre(4, 5, 6, 7, 12, 13, 14, 15));
  EXPECT_EQ(near.why_not, "");
}

TEST(NearCores, ExcludesDisallowedCores) {
  Machine machine;
  EXPECT_THAT(machine.TwoNodes().Gpu("1").Near({0, 1, 5, 13}).cores, ElementsAre(5, 13));
}

TEST(NearCores, IsEmptyIfProcessHasOtherCores) {
  Machine machine;
  const NearCores near = machine.TwoNodes().Gpu("1").Near({0, 1, 2});
  EXPECT_THAT(near.cores, IsEmpty());
  EXPECT_EQ(near.why_not,
            "the CPU affinity of the process excludes the cores of NUMA node 1 (GPU 0000:9a:00.0)");
}

TEST(NearCores, IsEmptyIfProcessHasFewOfThem) {
  Machine machine;
  machine.TwoNodes().Gpu("1");
  const NearCores near = machine.Near({0, 1, 2, 3, 4, 8, 9});
  EXPECT_THAT(near.cores, IsEmpty()) << "one core for all of a rank's threads";
  EXPECT_EQ(near.why_not, "only 1 of the process's 7 cores are on NUMA node 1 (GPU 0000:9a:00.0)");
}

TEST(NearCores, IsEmptyWithSingleNode) {
  Machine machine;
  machine.File("devices/system/node/online", "0").File("devices/system/node/node0/cpulist", "0-15");
  EXPECT_THAT(machine.Gpu("0").Near(Cores(16)).cores, IsEmpty());
  EXPECT_EQ(machine.Near(Cores(16)).why_not, "the machine has one NUMA node");
  EXPECT_EQ(Machine().Near(Cores(16)).why_not, "the machine has one NUMA node");  // No topology at all.
}

TEST(NearCores, IsEmptyWithoutTopology) {
  for (const char* node : {"-1", "", "x"}) {
    Machine machine;
    const NearCores near = machine.TwoNodes().Gpu(node).Near(Cores(16));
    EXPECT_THAT(near.cores, IsEmpty());
    EXPECT_EQ(near.why_not, "the NUMA node of GPU 0000:9a:00.0 is unknown");
  }
  EXPECT_THAT(Machine().TwoNodes().Near(Cores(16)).cores, IsEmpty()) << "no such GPU";
}

TEST(NearCores, IsEmptyForInvalidList) {
  for (const char* list : {"", "4-", "a", "4-5-6", "4-99999999", "-4"}) {
    Machine machine;
    machine.TwoNodes().File("devices/system/node/node1/cpulist", list);
    EXPECT_THAT(machine.Gpu("1").Near(Cores(16)).cores, IsEmpty()) << list;
  }
}

TEST(NearCores, RunOnAppliesToLaterThreads) {
  std::vector<int> before, after;
  std::thread([&] {
    before = AllowedCores();
    ASSERT_FALSE(before.empty());
    ASSERT_TRUE(RunOn({before.back()}).ok());
    std::thread([&] { after = AllowedCores(); }).join();
  }).join();
  EXPECT_THAT(after, ElementsAre(before.back()));
  EXPECT_EQ(AllowedCores(), before) << "the thread's alone";
}

}  // namespace
}  // namespace fsdpd
