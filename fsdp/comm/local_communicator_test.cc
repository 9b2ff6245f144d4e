#include "fsdp/comm/local_communicator.h"

#include "fsdp/comm/communicator_suite.h"

namespace fsdpd {
namespace {

INSTANTIATE_TEST_SUITE_P(Cpu, CommunicatorSuite,
                         testing::Combine(testing::Values(Transport{"Local", MakeLocalGroup}),
                                          testing::Values(1, 2, 3, 4, 8)),
                         NameOf);

TEST(LocalCommunicator, NamesBothOperationsWhenRanksDisagree) {
  Group group = MakeLocalGroup(2);
  OnEveryRank(2, [&](int rank) {
    std::vector<float> buffer(8);
    const absl::Status status = rank == 0 ? group[0]->AllReduce(buffer.data(), 3)
                                          : group[1]->AllGather(buffer.data(), 4, DType::kFp32);
    EXPECT_EQ(status, absl::FailedPreconditionError(
                          "rank 0 called all_reduce of 3 elements, rank 1 called all_gather of 16 bytes"));
  });
}

}  // namespace
}  // namespace fsdpd
