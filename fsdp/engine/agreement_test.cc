#include "fsdp/engine/agreement.h"

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "base/limits.h"
#include "fsdp/comm/peer_lost.h"

namespace fsdpd {
namespace {

using ::testing::HasSubstr;
using Lines = std::vector<std::string>;

// A store with the value limit of the real one.
class BoundedStore : public LocalStore {
 public:
  absl::Status Set(const std::string& key, const std::string& value) override {
    if (value.size() > kMaxRendezvousValueBytes) return absl::InvalidArgumentError("value too large");
    return LocalStore::Set(key, value);
  }
};

std::vector<absl::Status> Agree(const std::vector<Lines>& fingerprints) {
  BoundedStore store;
  std::vector<absl::Status> results(fingerprints.size());
  std::vector<std::thread> ranks;
  for (size_t rank = 0; rank < fingerprints.size(); ++rank) {
    ranks.emplace_back([&, rank] {
      results[rank] = AgreeOnProgram(&store, static_cast<int>(rank), static_cast<int>(fingerprints.size()),
                                     fingerprints[rank], absl::Seconds(30));
    });
  }
  for (std::thread& rank : ranks) rank.join();
  return results;
}

TEST(Agreement, AcceptsEqualPrograms) {
  for (const int world : {1, 2, 3, 8}) {
    for (const absl::Status& status : Agree(std::vector<Lines>(world, {"spec.steps = 3"}))) {
      EXPECT_TRUE(status.ok()) << status;
    }
  }
}

TEST(Agreement, AllRanksReportTheDifference) {
  const Lines usual = {"spec.steps = 3", "spec.global_batch = 32", "spec.seed = 1"};
  const Lines other = {"spec.steps = 3", "spec.global_batch = 64", "spec.seed = 2"};
  for (const absl::Status& status : Agree({usual, usual, usual, other, usual})) {
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("rank 3 differs from rank 0: spec.global_batch = 64, not 32"));
    EXPECT_THAT(std::string(status.message()), HasSubstr("1 of 5 differ: rank 3)"));
  }
}

TEST(Agreement, QuotesWholeLinesOfDifferentKinds) {
  const absl::Status status = Agree({{"#0 Gather"}, {"#0 Forward"}})[0];
  EXPECT_THAT(std::string(status.message()), HasSubstr("'#0 Forward', not '#0 Gather'"));
}

TEST(Agreement, SplitsLargeFingerprints) {
  Lines usual;
  while (usual.size() < 20'000) usual.push_back(absl::StrCat("instruction.", usual.size(), " = Gather"));
  Lines other = usual;
  other.back() = "instruction.19999 = Release";
  for (const absl::Status& status : Agree({usual, other})) {
    EXPECT_THAT(std::string(status.message()), HasSubstr("instruction.19999 = Release, not Gather"));
  }
}

TEST(Agreement, LimitsTheListOfRanks) {
  std::vector<Lines> fingerprints(12, {"spec.steps = 3"});
  fingerprints[0] = {"spec.steps = 4"};
  EXPECT_THAT(std::string(Agree(fingerprints)[11].message()),
              HasSubstr("11 of 12 differ: rank 1, 2, 3, 4, 5, 6, 7, 8, ..."));
}

TEST(Agreement, ReportsBothValuesOfDifferentFiles) {
  BoundedStore store;
  std::vector<absl::Status> results(3);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 3; ++rank) {
    ranks.emplace_back([&, rank] {
      const std::string sum =
          rank == 2 ? "model.safetensors: head = checksum 2" : "model.safetensors: head = checksum 1";
      results[rank] = AgreeOnFiles(
          &store, rank, 3, {"restore/files", "files of /models/x", Lines{"model.safetensors: size = 8", sum}},
          absl::Seconds(30));
    });
  }
  for (std::thread& rank : ranks) rank.join();
  for (const absl::Status& status : results) {
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("ranks opened different files of /models/x: rank 2 differs from rank 0: "
                          "model.safetensors: head = checksum 2, not checksum 1 (1 of 3"));
  }
}

TEST(Agreement, OpenErrorFailsAllRanks) {
  BoundedStore store;
  std::vector<absl::Status> results(3);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 3; ++rank) {
    ranks.emplace_back([&, rank] {
      OpenedFiles opened = {"data/files", "token files", Lines{"data.tokens[0].path a = 8 bytes"},
                            v1::ErrorClass::KIND_DATA};
      if (rank == 1) opened.traits = absl::NotFoundError("data.tokens[0].path: a: open: No such file");
      results[rank] = AgreeOnFiles(&store, rank, 3, opened, absl::Seconds(30));
    });
  }
  for (std::thread& rank : ranks) rank.join();
  EXPECT_EQ(results[1].ToString(absl::StatusToStringMode::kWithNoExtraData),
            "NOT_FOUND: data.tokens[0].path: a: open: No such file");
  for (const absl::Status& status : results) {
    ASSERT_TRUE(CauseOf(status).has_value());
    EXPECT_EQ(CauseOf(status)->kind(), v1::ErrorClass::KIND_DATA);
    EXPECT_FALSE(CauseOf(status)->permanent()) << "on another node it may be there";
  }
  EXPECT_FALSE(IsPeerLost(results[1])) << "its node is to be named";
  for (const int rank : {0, 2}) {
    EXPECT_TRUE(IsPeerLost(results[rank]));
    EXPECT_EQ(results[rank].code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(results[rank].message()),
                HasSubstr("ranks opened different token files: rank 1 differs from rank 0: "
                          "error = data.tokens[0].path: a: open: No such file, not none (1 of 3"));
  }
}

TEST(Agreement, SameErrorOnAllRanksIsPermanent) {
  for (const bool by_all : {true, false}) {
    BoundedStore store;
    std::vector<absl::Status> results(2);
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < 2; ++rank) {
      ranks.emplace_back([&, rank] {
        OpenedFiles opened = {"data/files", "token files", absl::InvalidArgumentError("a: a torn token"),
                              v1::ErrorClass::KIND_DATA};
        if (rank == 1 && !by_all) opened.traits = Lines{"a = 8 bytes"};
        results[rank] = AgreeOnFiles(&store, rank, 2, opened, absl::Seconds(30));
      });
    }
    for (std::thread& rank : ranks) rank.join();
    ASSERT_TRUE(CauseOf(results[0]).has_value());
    EXPECT_EQ(CauseOf(results[0])->permanent(), by_all);
    EXPECT_FALSE(IsPeerLost(results[0]));
    EXPECT_EQ(IsPeerLost(results[1]), !by_all);
  }
}

TEST(Agreement, MissingRankTimesOut) {
  LocalStore store;
  EXPECT_TRUE(absl::IsDeadlineExceeded(AgreeOnProgram(&store, 0, 2, {"x"}, absl::Milliseconds(10))));
}

}  // namespace
}  // namespace fsdpd
