// Neighbors over TCP, instead of NCCL pairs.
#include "fsdp/comm/neighbors.h"

#include <thread>
#include <vector>

#include "base/check.h"
#include "fsdp/comm/tcp_communicator.h"
#include "fsdp/comm/testing/communicator_suite.h"

namespace fsdpd {
namespace {

// Only the ranks and values of the suite are used here; its tests need collectives.
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CommunicatorSuite);

Members MakeRing(int size) {
  LocalStore store;
  Members ring(size);
  OnEveryRank(size, [&](int rank) {
    CommunicatorOptions options;
    options.rank = rank;
    options.size = size;
    options.name = "ring";
    auto made = Neighbors::Make(
        options, [&store](const CommunicatorOptions& of) { return MakeTcpCommunicator(of, &store); });
    FSDPD_CHECK_OK(made.status());
    ring[rank] = std::move(*made);
  });
  return ring;
}

// Both directions around the ring concurrently; the last rank is adjacent to the first.
TEST(Neighbors, DirectionsAreIndependent) {
  constexpr int64_t kCount = 1000;
  for (const int size : {2, 3, 4}) {
    const Members ring = MakeRing(size);
    OnEveryRank(size, [&](int rank) {
      const int next = (rank + 1) % size, before = (rank + size - 1) % size;
      std::thread sender([&] {
        for (const int to : {next, before}) {
          const at::Tensor values = OnDevice(Values(10 * rank + to, kCount), at::kCPU);
          EXPECT_TRUE(ring[rank]->Send(values.const_data_ptr(), kCount, DType::kFp32, to).ok());
        }
      });
      for (const int from : {before, next}) {
        const at::Tensor values = OnDevice(std::vector<float>(kCount, -1), at::kCPU);
        EXPECT_TRUE(ring[rank]->Receive(values.mutable_data_ptr(), kCount, DType::kFp32, from).ok());
        EXPECT_EQ(OnHost(values), Values(10 * from + rank, kCount)) << size << " ranks, from " << from;
      }
      sender.join();
      EXPECT_TRUE(ring[rank]->Await().ok());
      EXPECT_TRUE(ring[rank]->Health().ok());
    });
  }
}

TEST(Neighbors, AbortUnblocksBothDirections) {
  const Members ring = MakeRing(3);
  OnEveryRank(3, [&](int rank) {
    if (rank == 0) return ring[0]->Abort();
    float value = 0;
    EXPECT_EQ(ring[rank]->Receive(&value, 1, DType::kFp32, 0).code(), absl::StatusCode::kUnavailable);
  });
}

TEST(Neighbors, UnreachableRankFailsAllRanks) {
  CommunicatorOptions options;
  options.size = 3;
  const auto made = Neighbors::Make(options, [](const CommunicatorOptions& of) {
    return absl::StatusOr<std::unique_ptr<Communicator>>(absl::UnavailableError(of.name));
  });
  EXPECT_EQ(made.status(), absl::UnavailableError("/0-1"));
}

}  // namespace
}  // namespace fsdpd
