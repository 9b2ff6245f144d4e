#include "fsdp/memory/device_calls.h"

#include <gtest/gtest.h>

extern "C" {
void FakeSetDevice(int index);
int FakeAllocateAndFree(size_t bytes);
int FakeGrowAndShrink(size_t bytes);
int FakeFind(const char* symbol, void** found);
}

namespace fsdpd {
namespace {

constexpr size_t kTooMuch = size_t{2} << 30;

TEST(DeviceCalls, CountsSharedLibraryCallsByDevice) {
  FakeSetDevice(1);
  const DeviceCalls before = ReadDeviceCalls(1), others = ReadDeviceCalls(0);
  ASSERT_EQ(FakeAllocateAndFree(100), 0);
  EXPECT_EQ(ReadDeviceCalls(1).mallocs - before.mallocs, 4);
  EXPECT_EQ(ReadDeviceCalls(1).frees - before.frees, 4) << "to free null frees nothing";
  EXPECT_EQ(ReadDeviceCalls(0).mallocs, others.mallocs);
  EXPECT_EQ(ReadDeviceCalls(0).frees, others.frees);
}

TEST(DeviceCalls, FailedCallsAreNotCounted) {
  FakeSetDevice(0);
  const DeviceCalls before = ReadDeviceCalls(0);
  EXPECT_NE(FakeAllocateAndFree(kTooMuch), 0);
  EXPECT_NE(FakeGrowAndShrink(kTooMuch), 0);
  EXPECT_EQ(ReadDeviceCalls(0).mallocs, before.mallocs);
  EXPECT_EQ(ReadDeviceCalls(0).frees, before.frees);
}

TEST(DeviceCalls, CountsDriverFunctions) {
  FakeSetDevice(0);
  const DeviceCalls before = ReadDeviceCalls(0);
  ASSERT_EQ(FakeGrowAndShrink(100), 0);
  EXPECT_EQ(ReadDeviceCalls(0).mallocs - before.mallocs, 1);
  EXPECT_EQ(ReadDeviceCalls(0).frees - before.frees, 1);
  void* found = &found;
  EXPECT_EQ(FakeFind("cuMemMap", &found), 0);
  EXPECT_EQ(found, nullptr) << "what the driver lacks stays null";
}

TEST(DeviceCalls, CountsManually) {
  FakeSetDevice(0);
  const DeviceCalls before = ReadDeviceCalls(0);
  CountDeviceMalloc();
  CountDeviceFree();
  EXPECT_EQ(ReadDeviceCalls(0).mallocs - before.mallocs, 1);
  EXPECT_EQ(ReadDeviceCalls(0).frees - before.frees, 1);
}

}  // namespace
}  // namespace fsdpd
