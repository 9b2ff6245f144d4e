// NCCL transport. Built with --config=cuda; skips sizes for which there are not enough GPUs.
#include "fsdp/comm/nccl_communicator.h"

#include <ATen/ops/from_blob.h>
#include <c10/cuda/CUDAGuard.h>

#include <algorithm>

#include "base/check.h"
#include "fsdp/comm/testing/communicator_suite.h"
#include "fsdp/comm/window.h"
#include "fsdp/torch/cuda_device.h"

namespace fsdpd {
namespace {

// `without`: the rank that does not want a window, or -1.
Members MakeNcclGroupWithout(int size, int without) {
  LocalStore store;
  Members group(size);
  OnEveryRank(size, [&](int rank) {
    CommunicatorOptions options;
    options.device = DeviceKind::kCuda;
    options.rank = rank;
    options.size = size;
    options.device_index = rank;
    options.windows = rank != without;
    options.name = "test";
    auto made = MakeNcclCommunicator(options, &store);
    FSDPD_CHECK_OK(made.status());
    group[rank] = std::move(*made);
  });
  return group;
}

Members MakeNcclGroup(int size) { return MakeNcclGroupWithout(size, /*without=*/-1); }

Transport Nccl() {
  Transport transport;
  transport.name = "Nccl";
  transport.make = MakeNcclGroup;
  transport.device = [](int rank) {
    FSDPD_CHECK_OK(SetCudaDevice(rank));
    return at::Device(at::kCUDA, static_cast<at::DeviceIndex>(rank));
  };
  transport.max_ranks = CudaDeviceCount();
  transport.abort_reaches_peers = false;
  return transport;
}

INSTANTIATE_TEST_SUITE_P(Cuda, CommunicatorSuite,
                         testing::Combine(testing::Values(Nccl()), testing::Values(1, 2, 3, 4, 8)),
                         NameOfCase);

// A receive completes before the receiver has sent anything.
TEST(NcclCommunicator, SendsAndReceives) {
  if (CudaDeviceCount() < 2) GTEST_SKIP() << "needs 2 devices";
  const Members group = MakeNcclGroup(2);
  OnEveryRank(2, [&](int rank) {
    const at::Device device(at::kCUDA, static_cast<at::DeviceIndex>(rank));
    FSDPD_CHECK_OK(SetCudaDevice(rank));
    for (const int64_t count : kSuiteCounts) {
      const at::Tensor values = OnDevice(Values(rank, count), device);
      ASSERT_EQ(rank == 0 ? group[0]->Send(values.const_data_ptr(), count, DType::kFp32, 1)
                          : group[1]->Receive(values.mutable_data_ptr(), count, DType::kFp32, 0),
                absl::OkStatus());
      EXPECT_EQ(OnHost(values), Values(0, count));
    }
  });
}

TEST(NcclCommunicator, AbortEndsAWaitingKernel) {
  if (CudaDeviceCount() < 2) GTEST_SKIP() << "needs 2 devices";
  Members group = MakeNcclGroup(2);
  OnEveryRank(2, [&](int rank) { ASSERT_EQ(group[rank]->Barrier(), absl::OkStatus()); });
  std::thread waiting([&] {
    FSDPD_CHECK_OK(SetCudaDevice(0));
    const at::Tensor buffer = OnDevice(Values(0, 1000), at::Device(at::kCUDA, 0));
    ASSERT_EQ(group[0]->AllReduce(buffer.mutable_data_ptr<float>(), 1000), absl::OkStatus());
    group[0]->Abort();                        // The kernel is on the stream; rank 1 never arrives.
    EXPECT_EQ(OnHost(buffer).size(), 1000u);  // Waits for the stream, which must drain.
    EXPECT_EQ(group[0]->Barrier().code(), absl::StatusCode::kUnavailable);
  });
  waiting.join();
  group[1]->Abort();
}

// With copy engines if the machine supports them (see the log): the same results as with kernels, which the
// suite checks.
TEST(NcclCommunicator, CollectivesInAWindow) {
  const int size = std::min(CudaDeviceCount(), 4);
  if (size < 2) GTEST_SKIP() << "needs 2 devices";
  constexpr int64_t kBytes = 64 << 20;
  Members group = MakeNcclGroup(size);
  std::vector<char> by_copies(size);
  OnEveryRank(size, [&](int rank) {
    // On a side stream, as lanes are: copy engines do not accept batched copies on the default stream.
    const c10::cuda::CUDAStreamGuard stream(
        c10::cuda::getStreamFromPool(/*isHighPriority=*/true, static_cast<c10::DeviceIndex>(rank)));
    const auto window = MakeWindow(kBytes, rank);
    FSDPD_CHECK_OK(window.status());
    EXPECT_FALSE(group[rank]->HasCopyEngines());
    ASSERT_EQ(group[rank]->Register(*window, kBytes), absl::OkStatus());
    by_copies[rank] = group[rank]->HasCopyEngines();
    const auto view = [&](int64_t offset, int64_t count, at::ScalarType type) {
      const at::Device device(at::kCUDA, static_cast<at::DeviceIndex>(rank));
      return at::from_blob(static_cast<char*>(window->get()) + offset, {count},
                           at::TensorOptions(type).device(device));
    };
    for (const int64_t count : {1, 7, 4096, 1 << 20}) {
      const at::Tensor whole = view(0, size * count, at::kFloat);
      whole.fill_(-1);
      whole.narrow(0, rank * count, count).fill_(rank + 1);
      ASSERT_EQ(group[rank]->AllGather(whole.mutable_data_ptr(), count, DType::kFp32), absl::OkStatus());
      std::vector<float> gathered;
      for (int r = 0; r < size; ++r) gathered.insert(gathered.end(), count, static_cast<float>(r + 1));
      EXPECT_EQ(OnHost(whole), gathered) << "count " << count;

      const at::Tensor in = view(32 << 20, size * count, at::kBFloat16);
      const at::Tensor scratch = view(48 << 20, size * count, at::kBFloat16);
      const at::Tensor out = view(0, count, at::kFloat);
      in.fill_(rank == 0 ? 256 : 1);
      ASSERT_EQ(group[rank]->ReduceScatter(in.mutable_data_ptr(), scratch.mutable_data_ptr(),
                                           out.mutable_data_ptr<float>(), count, DType::kBf16),
                absl::OkStatus());
      EXPECT_EQ(OnHost(out), std::vector<float>(count, 256 + size - 1.0f)) << "count " << count;
    }
    ASSERT_EQ(group[rank]->Barrier(), absl::OkStatus());
  });
  EXPECT_EQ(by_copies, std::vector<char>(size, by_copies[0])) << "one window for all of them, or none";
  OnEveryRank(size, [&](int rank) { group[rank].reset(); });
}

// Otherwise the others would copy into a window that this rank does not have, and wait forever.
TEST(NcclCommunicator, WindowNeedsAllRanks) {
  if (CudaDeviceCount() < 2) GTEST_SKIP() << "needs 2 devices";
  constexpr int64_t kBytes = 4 << 20, kCount = 1000;
  Members group = MakeNcclGroupWithout(2, /*without=*/1);
  OnEveryRank(2, [&](int rank) {
    const c10::cuda::CUDAStreamGuard stream(
        c10::cuda::getStreamFromPool(/*isHighPriority=*/true, static_cast<c10::DeviceIndex>(rank)));
    const auto window = MakeWindow(kBytes, rank);
    FSDPD_CHECK_OK(window.status());
    ASSERT_EQ(group[rank]->Register(*window, kBytes), absl::OkStatus());
    EXPECT_FALSE(group[rank]->HasCopyEngines()) << "rank " << rank;
    const at::Tensor whole = at::from_blob(
        window->get(), {2 * kCount},
        at::TensorOptions(at::kFloat).device(at::Device(at::kCUDA, static_cast<at::DeviceIndex>(rank))));
    whole.fill_(rank + 1);
    ASSERT_EQ(group[rank]->AllGather(whole.mutable_data_ptr(), kCount, DType::kFp32), absl::OkStatus());
    std::vector<float> gathered(kCount, 1);
    gathered.resize(2 * kCount, 2);
    EXPECT_EQ(OnHost(whole), gathered);
  });
  OnEveryRank(2, [&](int rank) { group[rank].reset(); });
}

TEST(NcclCommunicator, RefusesAMissingDevice) {
  LocalStore store;
  CommunicatorOptions options;
  options.device = DeviceKind::kCuda;
  options.device_index = 1000;
  EXPECT_EQ(MakeNcclCommunicator(options, &store).status().code(), absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace fsdpd
