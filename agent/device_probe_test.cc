#include "agent/device_probe.h"

#include <gtest/gtest.h>

namespace fsdpd {
namespace {

MachineFacts Machine(std::vector<GpuMemory> gpus) {
  MachineFacts machine;
  machine.cores = 8;
  machine.memory_bytes = int64_t{64} << 30;
  machine.gpus = std::move(gpus);
  return machine;
}

TEST(DecideOffer, OffersCoresAndSharesTheMemory) {
  const auto all = DecideOffer("cpu", 0, Machine({}));
  ASSERT_TRUE(all.ok());
  EXPECT_EQ(all->slots, 8);
  EXPECT_EQ(all->memory_bytes_per_slot, (int64_t{60} << 30) / 8) << "64 GiB less 4 GiB in reserve";
  MachineFacts small = Machine({});
  small.memory_bytes = 1000;
  EXPECT_EQ(DecideOffer("cpu", 2, small)->memory_bytes_per_slot, 450);
}

TEST(DecideOffer, AutoTakesGpusWhenThereAreAnyAndTheSmallestOne) {
  const auto offer = DecideOffer("auto", 0, Machine({{100, 10}, {100, 30}, {80, 70}}));
  ASSERT_TRUE(offer.ok());
  EXPECT_EQ(offer->device, v1::DEVICE_CUDA);
  EXPECT_EQ(offer->slots, 3);
  EXPECT_EQ(offer->memory_bytes_per_slot, 10);
  EXPECT_EQ(DecideOffer("auto", 2, Machine({{100, 10}, {100, 30}, {80, 70}}))->memory_bytes_per_slot, 70);
  EXPECT_EQ(DecideOffer("auto", 0, Machine({}))->device, v1::DEVICE_CPU);
  EXPECT_EQ(DecideOffer("cpu", 0, Machine({{100, 90}}))->device, v1::DEVICE_CPU);
}

TEST(DecideOffer, RefusesWhatTheMachineCannotOffer) {
  MachineFacts no_driver = Machine({});
  no_driver.gpus = absl::UnavailableError("no NVIDIA driver: libnvidia-ml.so.1");
  EXPECT_EQ(DecideOffer("cuda", 0, no_driver).status().message(), "no NVIDIA driver: libnvidia-ml.so.1");
  EXPECT_EQ(DecideOffer("cuda", 0, Machine({})).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(DecideOffer("cuda", 2, Machine({{100, 90}})).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(DecideOffer("gpu", 0, Machine({})).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(DecideOffer("cpu", -1, Machine({})).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(ParseMemTotal, ReadsTheKernelsText) {
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
