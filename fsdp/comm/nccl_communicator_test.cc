// Built with --config=cuda; skips sizes for which there are not enough GPUs.
#include "fsdp/comm/nccl_communicator.h"

#include "base/check.h"
#include "fsdp/comm/communicator_suite.h"
#include "fsdp/comm/cuda_device.h"

namespace fsdpd {
namespace {

Group MakeNcclGroup(int size) {
  LocalStore store;
  Group group(size);
  OnEveryRank(size, [&](int rank) {
    CommunicatorOptions options;
    options.device = DeviceKind::kCuda;
    options.rank = rank;
    options.size = size;
    options.device_index = rank;
    options.name = "test";
    auto made = MakeNcclCommunicator(options, &store);
    FSDPD_CHECK_OK(made.status());
    group[rank] = std::move(*made);
  });
  return group;
}

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

TEST(NcclCommunicator, AbortEndsAKernelThatWaitsForAPeer) {
  if (CudaDeviceCount() < 2) GTEST_SKIP() << "needs 2 devices";
  Group group = MakeNcclGroup(2);
  OnEveryRank(2, [&](int rank) { ASSERT_EQ(group[rank]->Barrier(), absl::OkStatus()); });
  std::thread waiting([&] {
    FSDPD_CHECK_OK(SetCudaDevice(0));
    const at::Tensor buffer = OnDevice(Values(0, 1000), at::Device(at::kCUDA, 0));
    ASSERT_EQ(group[0]->AllReduce(buffer.mutable_data_ptr<float>(), 1000), absl::OkStatus());
    group[0]->Abort();                        // The kernel is on the stream; rank 1 never comes.
    EXPECT_EQ(OnHost(buffer).size(), 1000u);  // Waits for the stream, which has to drain.
    EXPECT_EQ(group[0]->Barrier().code(), absl::StatusCode::kUnavailable);
  });
  waiting.join();
  group[1]->Abort();
}

TEST(NcclCommunicator, RefusesADeviceThatIsNotThere) {
  LocalStore store;
  CommunicatorOptions options;
  options.device = DeviceKind::kCuda;
  options.device_index = 1000;
  EXPECT_EQ(MakeNcclCommunicator(options, &store).status().code(), absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace fsdpd
