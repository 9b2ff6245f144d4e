#include "agent/gpu/device_probe.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/temp_dir.h"

namespace fsdpd {
namespace {

MachineFacts Machine(std::vector<GpuMemory> gpus) {
  MachineFacts machine;
  machine.cores = 8;
  machine.memory_bytes = int64_t{64} << 30;
  machine.gpus = std::move(gpus);
  return machine;
}

TEST(DecideOffer, OffersCoresAndDividesMemory) {
  const auto all = DecideOffer("cpu", 0, Machine({}));
  ASSERT_TRUE(all.ok());
  EXPECT_EQ(all->slots, 8);
  EXPECT_EQ(all->memory_bytes_per_slot, (int64_t{60} << 30) / 8) << "64 GiB less 4 GiB in reserve";
  EXPECT_EQ(all->host_memory_bytes, 0) << "it is the slots'";
  MachineFacts small = Machine({});
  small.memory_bytes = 1000;
  EXPECT_EQ(DecideOffer("cpu", 2, small)->memory_bytes_per_slot, 450);
}

TEST(DecideOffer, AutoUsesGpusAndTheSmallestMemory) {
  const auto offer = DecideOffer("auto", 0, Machine({{100, 10}, {100, 30}, {80, 70}}));
  ASSERT_TRUE(offer.ok());
  EXPECT_EQ(offer->device, v1::DEVICE_CUDA);
  EXPECT_EQ(offer->slots, 3);
  EXPECT_EQ(offer->memory_bytes_per_slot, 10);
  EXPECT_EQ(offer->host_memory_bytes, int64_t{60} << 30);
  EXPECT_EQ(DecideOffer("auto", 2, Machine({{100, 10}, {100, 30}, {80, 70}}))->memory_bytes_per_slot, 70);
  EXPECT_EQ(DecideOffer("auto", 0, Machine({}))->device, v1::DEVICE_CPU);
  EXPECT_EQ(DecideOffer("cpu", 0, Machine({{100, 90}}))->device, v1::DEVICE_CPU);
}

TEST(DecideOffer, RejectsWhatTheMachineLacks) {
  MachineFacts no_driver = Machine({});
  no_driver.gpus = absl::UnavailableError("no NVIDIA driver: libnvidia-ml.so.1");
  EXPECT_EQ(DecideOffer("cuda", 0, no_driver).status().message(),
            "no NVIDIA driver: libnvidia-ml.so.1 [GPUS_MISSING]");
  EXPECT_EQ(DecideOffer("cuda", 0, Machine({})).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(DecideOffer("cuda", 2, Machine({{100, 90}})).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(DecideOffer("gpu", 0, Machine({})).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(DecideOffer("cpu", -1, Machine({})).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(DecideOffer, RejectsCpuOnANodeThatHadGpus) {
  MachineFacts booted = Machine({});
  booted.gpus = absl::UnavailableError("no NVIDIA driver");
  booted.gpus_offered = 8;
  const absl::Status without = DecideOffer("auto", 0, booted).status();
  EXPECT_EQ(without.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(
      without.message(),
      "GPUs: all are missing (want 8 as at the last start): no NVIDIA driver; set --device cpu to continue "
      "without them [GPUS_MISSING]");
  EXPECT_EQ(DecideOffer("cpu", 0, booted)->slots, 8) << "somebody said so";
  booted.gpus_offered = 0;
  EXPECT_EQ(DecideOffer("auto", 0, booted)->device, v1::DEVICE_CPU) << "it never had any";
}

TEST(DecideOffer, RejectsFewerGpusWithoutSlots) {
  MachineFacts fewer = Machine({{100, 10}, {100, 10}});
  fewer.gpus_offered = 3;
  for (const char* asked : {"auto", "cuda"}) {
    EXPECT_EQ(DecideOffer(asked, 0, fewer).status().message(),
              "GPUs: some are missing (got 2, want 3 as at the last start); set --slots 2 to continue "
              "without them [GPUS_MISSING]");
    EXPECT_EQ(DecideOffer(asked, 2, fewer)->slots, 2);
  }
  fewer.gpus_offered = 1;
  EXPECT_EQ(DecideOffer("auto", 0, fewer)->slots, 2) << "a GPU more is no fault";
}

TEST(GpusOffered, RoundTripsAndDefaultsToZero) {
  const TempDir dir;
  EXPECT_EQ(ReadGpusOffered(dir.path()), 0);
  for (const auto& [text, gpus] :
       {std::pair("8\n", 8), std::pair("", 0), std::pair("many", 0), std::pair("-1", 0)}) {
    std::ofstream(GpusOfferedPath(dir.path())) << text;
    EXPECT_EQ(ReadGpusOffered(dir.path()), gpus) << text;
  }
}

TEST(GpusOnBus, CountsNvidiaDevicesOnly) {
  const TempDir dir;
  EXPECT_EQ(CountGpusOnBus(dir.File("none")), 0);
  const auto device = [&](const std::string& name, const char* vendor, const char* kind) {
    const std::string directory = dir.File(name);
    std::filesystem::create_directory(directory);
    std::ofstream(directory + "/vendor") << vendor << "\n";
    std::ofstream(directory + "/class") << kind << "\n";
  };
  device("0000:01:00.0", "0x10de", "0x030200");
  device("0000:02:00.0", "0x10de", "0x030000");
  device("0000:03:00.0", "0x10de", "0x068000");
  device("0000:04:00.0", "0x1a03", "0x030000");
  EXPECT_EQ(CountGpusOnBus(dir.path()), 2);
}

TEST(ParseMemTotal, ReadsMeminfo) {
  EXPECT_EQ(ParseMemTotal("MemTotal:  100 kB\nMemAvailable:     42 kB\nCached: 1 kB\n"), 100 << 10);
  EXPECT_EQ(ParseMemTotal("MemAvailable: 100 kB\n"), 0);
}

TEST(ProbeMachine, FindsThisMachine) {
  const MachineFacts machine = ProbeMachine();
  EXPECT_GE(machine.cores, 1);
  EXPECT_GT(machine.memory_bytes, 0);
}

}  // namespace
}  // namespace fsdpd
