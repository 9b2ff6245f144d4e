#include "fsdp/comm/local_communicator.h"

#include "fsdp/comm/testing/communicator_suite.h"

namespace fsdpd {
namespace {

INSTANTIATE_TEST_SUITE_P(Cpu, CommunicatorSuite,
                         testing::Combine(testing::Values(Transport{"Local", MakeLocalGroup}),
                                          testing::Values(1, 2, 3, 4, 8)),
                         NameOfCase);

TEST(LocalCommunicator, ReportsDifferentOperations) {
  Members group = MakeLocalGroup(2);
  OnEveryRank(2, [&](int rank) {
    std::vector<float> buffer(8);
    const absl::Status status = rank == 0 ? group[0]->AllReduce(buffer.data(), 3)
                                          : group[1]->AllGather(buffer.data(), 4, DType::kFp32);
    EXPECT_EQ(status, absl::FailedPreconditionError(
                          "rank 0 called all_reduce of 3 fp32, rank 1 called all_gather of 4 fp32"));
  });
}

TEST(LocalCommunicator, ReportsDifferentTypesAndRoots) {
  Members group = MakeLocalGroup(2);
  OnEveryRank(2, [&](int rank) {
    std::vector<float> in(8), scratch(8), out(4);
    const DType wire = rank == 0 ? DType::kBf16 : DType::kFp16;
    EXPECT_EQ(group[rank]->ReduceScatter(in.data(), scratch.data(), out.data(), 4, wire),
              absl::FailedPreconditionError(
                  "rank 0 called reduce_scatter of 4 bf16, rank 1 called reduce_scatter of 4 fp16"));
    EXPECT_EQ(
        group[rank]->Broadcast(in.data(), 4, DType::kFp32, rank),
        absl::FailedPreconditionError(
            "rank 0 called broadcast of 4 fp32 from rank 0, rank 1 called broadcast of 4 fp32 from rank 1"));
  });
}

}  // namespace
}  // namespace fsdpd
