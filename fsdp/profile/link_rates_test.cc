#include "fsdp/profile/link_rates.h"

#include <gtest/gtest.h>

#include "fsdp/profile/testing/local_benches.h"

namespace fsdpd {
namespace {

constexpr ComputeSizes kProduct = {13, 24, 17, 0, 0, 0, 0};
constexpr LinkSizes kLinks = {/*large_elements=*/4099, /*small_elements=*/1};

TEST(LinkRates, MeasuresAllRatesOnBothWires) {
  for (const int ranks : {2, 3}) {
    for (const DType wire : {DType::kFp32, DType::kBf16}) {
      OnLocalBenches(ranks, [&](RankBench* bench) {
        const auto latency = MeasureLatency(bench, kLinks, wire);
        ASSERT_TRUE(latency.ok()) << latency.status();
        EXPECT_GT(*latency, 0);
        const auto rates = MeasureLinks(bench, kLinks, wire, *latency, /*memory_bytes_per_second=*/1e12);
        ASSERT_TRUE(rates.ok()) << rates.status();
        EXPECT_GT(rates->gather_bytes_per_second, 0);
        EXPECT_GT(rates->reduce_bytes_per_second, 0);
        EXPECT_LT(rates->gather_bytes_per_second, 1e13);
      });
    }
  }
}

TEST(LinkRates, TreatsExcessiveLatencyAsNoise) {
  OnLocalBenches(2, [&](RankBench* bench) {
    const auto rates = MeasureLinks(bench, kLinks, DType::kFp32, /*latency_seconds=*/100, 1e12);
    ASSERT_TRUE(rates.ok()) << rates.status();
    EXPECT_GT(rates->gather_bytes_per_second, 0);
  });
}

TEST(LinkRates, SlowdownsAreAtLeastOne) {
  OnLocalBenches(2, [&](RankBench* bench) {
    const auto slowdowns = MeasureSlowdowns(bench, kProduct, kLinks, DType::kFp32);
    ASSERT_TRUE(slowdowns.ok()) << slowdowns.status();
    EXPECT_GE(slowdowns->compute, 1);
    EXPECT_GE(slowdowns->communication, 1);
  });
}

// Reports success without doing anything.
class IdleCommunicator : public Communicator {
 public:
  int rank() const override { return 0; }
  int size() const override { return 2; }
  absl::Status AllGather(void*, int64_t, DType) override { return absl::OkStatus(); }
  absl::Status ReduceScatter(void*, void*, float* out, int64_t count, DType) override {
    for (int64_t i = 0; i < count; ++i) out[i] = 0;
    return absl::OkStatus();
  }
  absl::Status AllReduce(float*, int64_t) override { return absl::OkStatus(); }
  absl::Status AllToAll(const void*, void*, int64_t, DType) override { return absl::OkStatus(); }
  absl::Status Broadcast(void*, int64_t, DType, int) override { return absl::OkStatus(); }
  absl::Status Barrier() override { return absl::OkStatus(); }
  void Abort() override {}
};

TEST(LinkRates, RejectsWrongResult) {
  ConnectedMesh idle;
  idle.Add(Group::kShard, Role::kGather, std::make_unique<IdleCommunicator>());
  idle.Add(Group::kShard, Role::kReduce, std::make_unique<IdleCommunicator>());
  RankBench bench = LocalBench(std::move(idle));
  EXPECT_EQ(MeasureLatency(&bench, kLinks, DType::kFp32).status(),
            absl::InternalError("all-gather in fp32: wrong result"));
  OnLocalBenches(2, [&](RankBench* half_idle) {
    half_idle->mesh.Add(Group::kShard, Role::kReduce, std::make_unique<IdleCommunicator>());
    EXPECT_EQ(MeasureLatency(half_idle, kLinks, DType::kBf16).status(),
              absl::InternalError("reduce-scatter in bf16: wrong result"));
  });
}

}  // namespace
}  // namespace fsdpd
