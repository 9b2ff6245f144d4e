// What CPU transports promise beyond the suite, and the choice between transports.
#include "fsdp/comm/communicator.h"

#include <absl/strings/match.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "base/check.h"
#include "fsdp/comm/communicator_test_ranks.h"
#include "fsdp/comm/local_communicator.h"

namespace fsdpd {
namespace {

CommunicatorOptions Options(int rank, int size) {
  CommunicatorOptions options;
  options.rank = rank;
  options.size = size;
  options.name = "test";
  return options;
}

Group MakeGlooGroup(int size) {
  LocalStore store;
  Group group(size);
  OnEveryRank(size, [&](int rank) {
    auto made = MakeCommunicator(Options(rank, size), &store);
    FSDPD_CHECK_OK(made.status());
    group[rank] = std::move(*made);
  });
  return group;
}

struct Transport {
  std::string name;
  std::function<Group(int size)> make;
};

class CpuGroups : public testing::TestWithParam<Transport> {};
INSTANTIATE_TEST_SUITE_P(Cpu, CpuGroups,
                         testing::Values(Transport{"Local", MakeLocalGroup},
                                         Transport{"Gloo", MakeGlooGroup}),
                         [](const auto& info) { return info.param.name; });

TEST_P(CpuGroups, SumHasTheBitsOfRankOrderOnEveryRankAndInEveryOperation) {
  constexpr int kSize = 3;
  for (const int64_t count :
       {3 * kSize, 3000 * kSize}) {  // Gloo has a way for small and one for large counts.
    Group group = GetParam().make(kSize);
    const float inputs[kSize] = {1e8f, -1e8f, 1};  // Any other order loses the 1 in some element.
    OnEveryRank(kSize, [&](int rank) {
      std::vector<float> reduced(count, inputs[rank]);
      std::vector<float> scattered = reduced;
      const int64_t own = count / kSize;
      ASSERT_EQ(group[rank]->AllReduce(reduced.data(), count), absl::OkStatus());
      float* out = scattered.data() + rank * own;
      ASSERT_EQ(group[rank]->ReduceScatter(scattered.data(), out, own), absl::OkStatus());
      EXPECT_EQ(reduced, std::vector<float>(count, 1));
      EXPECT_EQ(std::vector<float>(out, out + own), std::vector<float>(own, 1));
    });
  }
}

TEST_P(CpuGroups, RankThatLeftFailsTheOthersOperation) {
  constexpr int kSize = 4;
  Group group = GetParam().make(kSize);
  OnEveryRank(kSize, [&](int rank) {
    std::vector<float> buffer(100 * kSize, 1);
    ASSERT_EQ(group[rank]->Barrier(), absl::OkStatus());
    if (rank == 1) {
      group[rank].reset();
      return;
    }
    // The barrier's last bytes may be lost with the rank that left; then it is this one that fails, and no
    // later.
    absl::Status status = group[rank]->AllGather(buffer.data(), 100, DType::kFp32);
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
    EXPECT_TRUE(absl::StrContains(status.message(), "all_gather")) << status;
  });
}

TEST(Communicator, OfGpusNeedsABinaryBuiltForThem) {
  LocalStore store;
  CommunicatorOptions options = Options(0, 1);
  options.device = DeviceKind::kCuda;
  options.device_index = 1000;  // So that it is refused where there are GPUs, too.
  EXPECT_FALSE(MakeCommunicator(options, &store).ok());
}

}  // namespace
}  // namespace fsdpd
