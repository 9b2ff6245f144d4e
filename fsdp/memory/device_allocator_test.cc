#include "fsdp/memory/device_allocator.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include "fsdp/memory/host_caching_allocator.h"

namespace fsdpd {
namespace {

TEST(DeviceAllocator, CountsCpuAllocations) {
  const at::Tensor before = at::empty({1000});
  EXPECT_EQ(ReadMemoryCounters(DeviceKind::kCpu, 0).allocations, 0);
  InstallHostCachingAllocator();
  at::Tensor tensor = at::empty({1000}, at::TensorOptions(at::kFloat));
  const MemoryCounters live = ReadMemoryCounters(DeviceKind::kCpu, 0);
  EXPECT_EQ(live.allocations, 1);
  EXPECT_EQ(live.allocated_bytes, 4096);  // 4000 rounded up to a multiple of 512.
  tensor.reset();
  EXPECT_EQ(ReadMemoryCounters(DeviceKind::kCpu, 0).peak_bytes, 4096);
  ResetPeakMemory(DeviceKind::kCpu, 0);
  const MemoryCounters after = ReadMemoryCounters(DeviceKind::kCpu, 0);
  EXPECT_EQ(after.peak_bytes, 0);
  EXPECT_EQ(after.reserved_bytes, 4096);
}

}  // namespace
}  // namespace fsdpd
