// CUDA stream lanes and graphs. Built with --config=cuda; skipped without a GPU.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <absl/time/clock.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>
#include <sys/mman.h>
#include <unistd.h>

#include <future>

#include "fsdp/lane/lane_graph.h"
#include "fsdp/lane/testing/lane_suite.h"
#include "fsdp/torch/cuda_device.h"

namespace fsdpd {
namespace {

std::unique_ptr<Lane> MakeFirstDevicesLane() { return MakeStreamLane(0, true); }

INSTANTIATE_TEST_SUITE_P(Cuda, LaneSuite,
                         testing::Values(LaneKind{"Stream", MakeFirstDevicesLane, CudaAvailable}), NameOf);

class StreamLane : public testing::Test {
 protected:
  void SetUp() override {
    if (!CudaAvailable()) GTEST_SKIP() << "no GPU";
    ASSERT_TRUE(SetCudaDevice(0).ok());
  }
};

TEST_F(StreamLane, WaitOrdersKernels) {
  const auto options = at::TensorOptions(at::kFloat).device(at::kCUDA);
  const at::Tensor a = at::zeros({64 << 20}, options);
  const at::Tensor b = at::zeros({64 << 20}, options);
  auto writer = MakeStreamLane(0, false);
  auto reader = MakeStreamLane(0, true);
  b.sum().item();  // The zeros are written before other streams write.
  for (int round = 1; round <= 10; ++round) {
    writer->Submit([&] {
      for (int i = 0; i < 10; ++i) a.add_(1);
      return absl::OkStatus();
    });
    reader->Wait(writer->Record());
    reader->Submit([&] {
      b.copy_(a);
      return absl::OkStatus();
    });
    writer->Wait(reader->Record());
    ASSERT_TRUE(reader->Synchronize().ok());
    EXPECT_EQ(b.min().item<float>(), 10 * round);
    EXPECT_EQ(b.max().item<float>(), 10 * round);
  }
}

TEST_F(StreamLane, EventsMeasureDeviceTime) {
  const at::Tensor a = at::zeros({256 << 20}, at::TensorOptions(at::kFloat).device(at::kCUDA));
  auto lane = MakeStreamLane(0, false);
  const LaneEventPtr begin = lane->Record();
  lane->Submit([&] {
    for (int i = 0; i < 10; ++i) a.add_(1);
    return absl::OkStatus();
  });
  const LaneEventPtr end = lane->Record();
  ASSERT_TRUE(end->Await().ok());
  EXPECT_GT(end->SecondsSince(*begin), 0.001);  // 10 x 2 GiB through memory: no GPU moves 20 TB/s.
}

// Like a collective whose peer is gone: it stays on the stream forever.
class Stuck {
 public:
  explicit Stuck(Lane* lane) {
    lane->Submit([this] {
      const auto wait = [](void* self) { static_cast<Stuck*>(self)->released_.get_future().wait(); };
      EXPECT_EQ(cudaLaunchHostFunc(c10::cuda::getCurrentCUDAStream().stream(), wait, this), cudaSuccess);
      return absl::OkStatus();
    });
  }
  void Release() {
    released_.set_value();
    cudaDeviceSynchronize();
  }

 private:
  std::promise<void> released_;
};

// Flight recorder memory as shared by agent and rank: a file, mapped twice.
class SharedWord {
 public:
  SharedWord() : file_(memfd_create("word", MFD_CLOEXEC)) {
    EXPECT_EQ(ftruncate(file_, Lane::kProgressBytes), 0);
    word_ = static_cast<std::atomic<uint64_t>*>(
        mmap(nullptr, Lane::kProgressBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file_, 0));
  }
  ~SharedWord() {
    munmap(word_, Lane::kProgressBytes);
    close(file_);
  }
  std::atomic<uint64_t>* word() { return word_; }
  uint64_t Read() const {
    uint64_t value = 0;
    EXPECT_EQ(pread(file_, &value, sizeof value, 0), 8);
    return value;
  }

 private:
  const int file_;
  std::atomic<uint64_t>* word_;
};

TEST_F(StreamLane, ProgressOfAStuckStreamIsReadable) {
  SharedWord shared;
  auto lane = MakeStreamLane(0, true);
  ASSERT_TRUE(lane->ShowProgress(shared.word()).ok());
  lane->Progress(1);
  const LaneEventPtr before = lane->Record();
  Stuck stuck(lane.get());
  lane->Progress(2);
  ASSERT_TRUE(before->Await().ok());
  EXPECT_EQ(shared.Read(), 1u);
  stuck.Release();
  EXPECT_EQ(shared.Read(), 2u);
}

TEST_F(StreamLane, ProgressFollowsKernels) {
  SharedWord shared;
  auto lane = MakeStreamLane(0, false);
  ASSERT_TRUE(lane->ShowProgress(shared.word()).ok());
  const at::Tensor a = at::zeros({64 << 20}, at::TensorOptions(at::kFloat).device(at::kCUDA));
  a.sum().item();
  cudaEvent_t ended;
  ASSERT_EQ(cudaEventCreateWithFlags(&ended, cudaEventDisableTiming), cudaSuccess);
  for (uint64_t round = 1; round <= 20; ++round) {
    lane->Submit([&] {
      for (int i = 0; i < 20; ++i) a.add_(1);
      cudaEventRecord(ended, c10::cuda::getCurrentCUDAStream().stream());
      return absl::OkStatus();
    });
    lane->Progress(round);
    while (shared.Read() != round) {
    }
    EXPECT_EQ(cudaEventQuery(ended), cudaSuccess);
  }
  cudaEventDestroy(ended);
}

// Two lanes: one adds 1 to `a`, the other copies the result to `b`.
absl::Status AddAndCopy(Lane* adder, Lane* copier, const at::Tensor& a, const at::Tensor& b,
                        LaneEventPtr events[2]) {
  adder->Progress(1);
  events[0] = adder->Record();
  adder->Submit([&a] {
    a.add_(1);
    return absl::OkStatus();
  });
  copier->Wait(adder->Record());
  copier->Submit([&a, &b] {
    b.copy_(a);
    return absl::OkStatus();
  });
  events[1] = copier->Record();
  adder->Progress(2);
  return absl::OkStatus();
}

TEST_F(StreamLane, GraphReplaysAndMeasuresWork) {
  const at::Tensor a = at::zeros({16 << 20}, at::TensorOptions(at::kFloat).device(at::kCUDA));
  const at::Tensor b = at::zeros_like(a);
  auto adder = MakeStreamLane(0, false), copier = MakeStreamLane(0, true);
  SharedWord progress, launches;
  ASSERT_TRUE(adder->ShowProgress(progress.word()).ok());
  ASSERT_TRUE(adder->ShowLaunches(launches.word()).ok());
  LaneEventPtr events[2];
  // Allocates what the operators need before they are recorded.
  ASSERT_TRUE(AddAndCopy(adder.get(), copier.get(), a, b, events).ok());
  ASSERT_TRUE(copier->Synchronize().ok());
  const auto graph = RecordGraph({adder.get(), copier.get()},
                                 [&] { return AddAndCopy(adder.get(), copier.get(), a, b, events); });
  ASSERT_TRUE(graph.ok()) << graph.status();
  EXPECT_EQ(b.min().item<float>(), 1);  // Nothing ran.
  for (int round = 1; round <= 5; ++round) {
    progress.word()->store(0);
    (*graph)->Launch(100 + round);
    const LaneEventPtr end = adder->Record();
    copier->Wait(end);
    ASSERT_TRUE(end->Await().ok());
    EXPECT_EQ(b.min().item<float>(), 1 + round);
    EXPECT_EQ(b.max().item<float>(), 1 + round);
    EXPECT_EQ(progress.Read(), 2u);
    EXPECT_EQ(launches.Read(), 100u + round);
    EXPECT_GT(events[1]->SecondsSince(*events[0]), 1e-5);  // 256 MiB: no GPU moves 20 TB/s.
  }
}

TEST_F(StreamLane, FailedRecordingKeepsLanesUsable) {
  const at::Tensor a = at::zeros({1024}, at::TensorOptions(at::kFloat).device(at::kCUDA));
  auto first = MakeStreamLane(0, false), second = MakeStreamLane(0, true);
  const auto failed = RecordGraph({first.get(), second.get()}, [&] {
    second->Submit([&] { return absl::InternalError("as a unit that fails"); });
    return absl::OkStatus();
  });
  EXPECT_EQ(failed.status(), absl::InternalError("as a unit that fails"));
  const auto impossible = RecordGraph({first.get(), second.get()}, [&] {
    first->Submit([&] {
      EXPECT_ANY_THROW(a.sum().item());  // Synchronizes with the device.
      return absl::OkStatus();
    });
    return absl::OkStatus();
  });
  EXPECT_FALSE(impossible.ok());
  for (Lane* lane : {first.get(), second.get()}) {
    lane->Submit([&] {
      a.add_(1);
      return absl::OkStatus();
    });
    ASSERT_TRUE(lane->Synchronize().ok());
  }
  EXPECT_EQ(a.min().item<float>(), 2);
  const auto cpu = MakeThreadLane();
  EXPECT_TRUE(absl::IsUnimplemented(RecordGraph({cpu.get()}, [] { return absl::OkStatus(); }).status()));
}

TEST_F(StreamLane, ProgressWordIsReusable) {
  const auto first = std::make_unique<ProgressWord>();
  const auto second = std::make_unique<ProgressWord>();
  for (uint64_t round = 1; round <= 3; ++round) {
    auto one = MakeStreamLane(0, false);
    auto other = MakeStreamLane(0, true);
    ASSERT_TRUE(one->ShowProgress(&first->value).ok());
    ASSERT_TRUE(other->ShowProgress(&second->value).ok());
    one->Progress(round);
    other->Progress(100 + round);
    ASSERT_TRUE(one->Synchronize().ok());
    ASSERT_TRUE(other->Synchronize().ok());
    EXPECT_EQ(first->value.load(), round);
    EXPECT_EQ(second->value.load(), 100 + round);
  }
}

TEST_F(StreamLane, InterruptEndsAwait) {
  auto lane = MakeStreamLane(0, true);
  Stuck stuck(lane.get());
  int asked = 0;
  const absl::Status status = lane->Record()->Await(
      [&asked] { return ++asked < 10 ? absl::OkStatus() : absl::CancelledError("asked to stop"); });
  EXPECT_EQ(status, absl::CancelledError("asked to stop"));
  stuck.Release();
}

TEST_F(StreamLane, DrainedLaneCanBeDestroyed) {
  auto lane = MakeStreamLane(0, true);
  Stuck stuck(lane.get());
  lane->Drain(absl::Now() + absl::Milliseconds(10));
  lane.reset();
  stuck.Release();
}

}  // namespace
}  // namespace fsdpd
