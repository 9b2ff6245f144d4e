#include "fsdp/telemetry/kernel_recorder.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

namespace fsdpd {
namespace {

constexpr absl::Duration kLong = absl::Minutes(1);
constexpr uint8_t kHostToDevice = 1;

class KernelRecorderTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    library_ = dlopen("fsdp/telemetry/testing/libfake-cupti.so", RTLD_NOW | RTLD_LOCAL);
    ASSERT_NE(library_, nullptr) << dlerror();
  }
  template <typename Function>
  static Function* Find(const char* name) {
    return reinterpret_cast<Function*>(dlsym(library_, name));
  }
  void Kernel(const char* name, int device, uint32_t stream, int64_t begin, int64_t end) {
    Find<void(const char*, uint32_t, uint32_t, uint64_t, uint64_t)>("FakeKernel")(
        name, static_cast<uint32_t>(device), stream, static_cast<uint64_t>(begin),
        static_cast<uint64_t>(end));
  }

  static void* library_;
  KernelRecorder& recorder_ = KernelRecorder::Process();
};

void* KernelRecorderTest::library_ = nullptr;

TEST_F(KernelRecorderTest, ReturnsActivitiesOfIntervalByDevice) {
  ASSERT_TRUE(recorder_.Start().ok());
  Kernel("_Z4normPf", 0, 7, 120, 130);
  Kernel("gemm", 0, 9, 110, 150);
  Kernel("before", 0, 7, 90, 95);
  Kernel("other", 1, 7, 115, 120);
  Kernel("later", 0, 7, 200, 210);
  Kernel("unfinished", 0, 7, 0, 0);
  Find<void(uint8_t, uint64_t, uint32_t, uint32_t, uint64_t, uint64_t)>("FakeCopy")(kHostToDevice, 4096, 0,
                                                                                    11, 140, 145);
  const std::vector<DeviceActivity> taken = recorder_.Take(0, 100, 200, kLong);
  ASSERT_EQ(taken.size(), 3u);
  EXPECT_EQ(taken[0].name, "gemm");
  EXPECT_EQ(taken[0].stream, 9u);
  EXPECT_EQ(taken[0].end_unix_nanos, 150);
  EXPECT_EQ(taken[1].name, "norm(float*)") << "as its source has it";
  EXPECT_EQ(taken[2].name, "copy, host to device");
  EXPECT_EQ(taken[2].bytes, 4096);
  EXPECT_TRUE(taken[2].kind == DeviceActivity::Kind::kCopy);
  ASSERT_EQ(recorder_.Take(1, 0, 110, absl::ZeroDuration()).size(), 0u);
  ASSERT_EQ(recorder_.Take(1, 0, 200, absl::ZeroDuration()).size(), 1u) << "of the last nothing later comes";
  EXPECT_EQ(recorder_.Take(0, 200, 300, absl::ZeroDuration())[0].name, "later") << "the next step's";
  recorder_.Stop();
}

TEST_F(KernelRecorderTest, RecordsWhileAnyUserIsActive) {
  ASSERT_TRUE(recorder_.Start().ok());
  ASSERT_TRUE(recorder_.Start().ok());
  recorder_.Stop();
  Kernel("seen", 2, 7, 10, 20);
  recorder_.Stop();
  Kernel("unseen", 2, 7, 30, 40);
  EXPECT_EQ(recorder_.Take(2, 0, 100, absl::ZeroDuration()).size(), 1u);
}

// Regression test: once the limit of old records was reached, kernels of later steps were lost and waited for
// in vain.
TEST_F(KernelRecorderTest, DropsOldestRecords) {
  constexpr int64_t kMost = KernelRecorder::kMostRecords;
  ASSERT_TRUE(recorder_.Start().ok());
  for (int64_t i = 1; i <= kMost + 100; ++i) {
    Kernel("old", 3, 7, i, i + 1);
    if (i % 100 == 0) recorder_.Take(5, 0, 1, absl::ZeroDuration());  // Flushes.
  }
  Kernel("later", 3, 7, 2 * kMost, 2 * kMost + 1);
  EXPECT_EQ(recorder_.Take(3, kMost, 2 * kMost, kLong).size(), 101u) << "the newest of them";
  EXPECT_EQ(recorder_.Take(3, 2 * kMost, 3 * kMost, absl::ZeroDuration()).size(), 1u);
  recorder_.Stop();
}

// Regression test: with full names of template kernels, the trace of a large step exceeded the limit.
TEST_F(KernelRecorderTest, ShortensLongNames) {
  ASSERT_TRUE(recorder_.Start().ok());
  const std::string name(5000, 'k');
  Kernel(name.c_str(), 4, 7, 10, 20);
  const std::vector<DeviceActivity> taken = recorder_.Take(4, 0, 100, absl::ZeroDuration());
  ASSERT_EQ(taken.size(), 1u);
  EXPECT_EQ(taken[0].name, std::string(117, 'k') + "...");
  recorder_.Stop();
}

}  // namespace
}  // namespace fsdpd
