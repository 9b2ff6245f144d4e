// Guarantees of CPU transports beyond the common suite, and the choice of transport.
#include "fsdp/comm/make_communicator.h"

#include <absl/strings/match.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "base/check.h"
#include "fsdp/comm/local_communicator.h"
#include "fsdp/comm/peer_lost.h"
#include "fsdp/comm/testing/communicator_test_ranks.h"

namespace fsdpd {
namespace {

Members MakeTcpGroup(int size) {
  LocalStore store;
  Members group(size);
  OnEveryRank(size, [&](int rank) {
    auto made = MakeCommunicator(Options(rank, size), &store);
    FSDPD_CHECK_OK(made.status());
    group[rank] = std::move(*made);
  });
  return group;
}

struct Transport {
  std::string name;
  std::function<Members(int size)> make;
};

template <typename Element>
constexpr DType kTypeOf = DType::kFp32;
template <>
constexpr DType kTypeOf<c10::BFloat16> = DType::kBf16;
template <>
constexpr DType kTypeOf<c10::Half> = DType::kFp16;

// The result of a rank all of whose inputs are `value`.
template <typename Element>
std::vector<float> ReduceScattered(Communicator* group, float value, int64_t count) {
  std::vector<Element> in(group->size() * count, static_cast<Element>(value)), scratch(in.size());
  std::vector<float> out(count);
  EXPECT_EQ(group->ReduceScatter(in.data(), scratch.data(), out.data(), count, kTypeOf<Element>),
            absl::OkStatus());
  return out;
}

class CpuGroups : public testing::TestWithParam<Transport> {};
INSTANTIATE_TEST_SUITE_P(Cpu, CpuGroups,
                         testing::Values(Transport{"Local", MakeLocalGroup}, Transport{"Tcp", MakeTcpGroup}),
                         [](const auto& info) { return info.param.name; });

TEST_P(CpuGroups, SumsInRankOrder) {
  constexpr int kSize = 3;
  const float small = 1.0f / (1 << 14);  // Lost next to 32768 in fp32, though both are exact in every type.
  const float inputs[kSize] = {32768, -32768, small};  // Any other order loses it in some element.
  for (const int64_t own : {3, 3000}) {                // TCP has separate paths for small and large counts.
    const int64_t count = own * kSize;
    Members group = GetParam().make(kSize);
    OnEveryRank(kSize, [&](int rank) {
      std::vector<float> reduced(count, inputs[rank]);
      ASSERT_EQ(group[rank]->AllReduce(reduced.data(), count), absl::OkStatus());
      EXPECT_EQ(reduced, std::vector<float>(count, small));
      EXPECT_EQ(ReduceScattered<float>(group[rank].get(), inputs[rank], own), std::vector<float>(own, small));
      EXPECT_EQ(ReduceScattered<c10::BFloat16>(group[rank].get(), inputs[rank], own),
                std::vector<float>(own, small));
      EXPECT_EQ(ReduceScattered<c10::Half>(group[rank].get(), inputs[rank], own),
                std::vector<float>(own, small));
    });
  }
}

TEST_P(CpuGroups, OperationsFailAfterARankLeft) {
  constexpr int kSize = 4;
  Members group = GetParam().make(kSize);
  OnEveryRank(kSize, [&](int rank) {
    std::vector<float> buffer(100 * kSize, 1);
    ASSERT_EQ(group[rank]->Barrier(), absl::OkStatus());
    if (rank == 1) {
      group[rank].reset();
      return;
    }
    // The barrier's last bytes may be lost with the rank that left; then this operation fails, at the latest.
    absl::Status status = group[rank]->AllGather(buffer.data(), 100, DType::kFp32);
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
    EXPECT_TRUE(absl::StrContains(status.message(), "all_gather")) << status;
    if (GetParam().name == "Tcp") EXPECT_TRUE(IsPeerLost(status)) << status;
  });
}

TEST(Communicator, CudaNeedsACudaBuild) {
  LocalStore store;
  CommunicatorOptions options = Options(0, 1);
  options.device = DeviceKind::kCuda;
  options.device_index = 1000;  // Refused on hosts with GPUs, too.
  EXPECT_FALSE(MakeCommunicator(options, &store).ok());
}

}  // namespace
}  // namespace fsdpd
