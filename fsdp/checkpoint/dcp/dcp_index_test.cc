#include "fsdp/checkpoint/dcp/dcp_index.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>

namespace fsdpd {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

using Sizes = std::vector<int64_t>;

// An fp32 tensor with these chunks, whose records are consecutive in one file.
DcpIndex IndexWith(Sizes shape, const std::vector<Rectangle>& chunks) {
  DcpIndex index;
  index.files = {"__0_0.distcp"};
  index.tensors.push_back({"w", "float32", FindTensorType("float32"), std::move(shape), {}});
  for (const Rectangle& chunk : chunks) {
    const auto begin = static_cast<int64_t>(index.tensors[0].chunks.size()) * 100;
    index.tensors[0].chunks.push_back({chunk, {0, begin, 100, ""}});
  }
  return index;
}

// The single violation of an index; empty: none.
std::string FaultOf(const DcpIndex& index) {
  const DcpViolations violations = CheckIndex(index);
  if (violations.empty()) return "";
  EXPECT_EQ(violations.size(), 1u) << violations[0].what << "; " << violations[violations.size() - 1].what;
  return violations[0].where + ": " + violations[0].what;
}

std::string FaultOf(const Sizes& shape, const std::vector<Rectangle>& chunks) {
  return FaultOf(IndexWith(shape, chunks));
}

TEST(DcpIndex, AcceptsCompleteTensors) {
  EXPECT_EQ(FaultOf({}, {{{}, {}}}), "");
  EXPECT_EQ(FaultOf({0, 4}, {{{0, 0}, {0, 4}}}), "");
  EXPECT_EQ(FaultOf({0, 4}, {}), "");
  EXPECT_EQ(FaultOf({4, 4}, {{{0, 0}, {4, 1}}, {{0, 1}, {4, 3}}}), "");
  // Split like FSDP shards, in any order.
  EXPECT_EQ(FaultOf({3, 4}, {{{1, 2}, {1, 2}}, {{0, 0}, {1, 4}}, {{2, 0}, {1, 4}}, {{1, 0}, {1, 2}}}), "");
  // A pinwheel, which no straight line divides.
  EXPECT_EQ(
      FaultOf({3, 3},
              {{{0, 0}, {1, 2}}, {{0, 2}, {2, 1}}, {{2, 1}, {1, 2}}, {{1, 0}, {2, 1}}, {{1, 1}, {1, 1}}}),
      "");
}

// Regression: a newline in a name started a new line in the reason of a job.
TEST(DcpIndex, ViolationsAreOneLine) {
  DcpIndex index = IndexWith({4}, {{{0}, {2}}});
  index.tensors[0].name = "w\n\x1b[2J";
  EXPECT_THAT(FaultOf(index), StartsWith("w\\n\\x1b[2J: is incomplete"));
}

TEST(DcpIndex, EmptyChunksMayShareOrOmitPlace) {
  DcpIndex index = IndexWith({2, 4}, {{{0, 0}, {2, 4}}, {{2, 0}, {0, 4}}, {{2, 0}, {0, 4}}});
  index.tensors[0].chunks[2].place = index.tensors[0].chunks[1].place;
  EXPECT_EQ(FaultOf(index), "");
  index.tensors[0].chunks[1].place = DcpPlace();
  EXPECT_EQ(FaultOf(index), "");
}

TEST(DcpIndex, ReportsHolesAndOverlaps) {
  EXPECT_EQ(FaultOf({4, 4}, {{{0, 0}, {2, 4}}}), "w: is incomplete: 8 of 16 elements are in no chunk");
  EXPECT_EQ(FaultOf({4, 4}, {}), "w: is incomplete: 16 of 16 elements are in no chunk");
  EXPECT_EQ(FaultOf({4, 4}, {{{0, 0}, {3, 4}}, {{2, 0}, {1, 4}}, {{3, 0}, {1, 4}}}),
            "w: chunks [3, 4] at [0, 0] and [1, 4] at [2, 0] overlap");
  // As many elements as the tensor, but with a hole.
  EXPECT_THAT(FaultOf({4, 4}, {{{0, 0}, {4, 2}}, {{0, 1}, {4, 2}}}), HasSubstr("overlap"));
}

TEST(DcpIndex, ReportsChunksOutsideTensor) {
  constexpr int64_t kHuge = INT64_MAX;
  for (const Rectangle& chunk : std::vector<Rectangle>{{{1, 0}, {4, 4}},
                                                       {{0}, {16}},
                                                       {{0, 0}, {4, 5}},
                                                       {{-1, 0}, {4, 4}},
                                                       {{0, 0}, {-4, -4}},
                                                       {{kHuge, 0}, {kHuge, kHuge}}}) {
    EXPECT_THAT(FaultOf({4, 4}, {chunk}), HasSubstr("is outside the tensor's shape [4, 4]"));
  }
  EXPECT_EQ(FaultOf({kHuge, kHuge}, {{{0, 0}, {kHuge, kHuge}}}),
            "w: invalid shape [9223372036854775807, 9223372036854775807]");
  EXPECT_EQ(FaultOf({-1}, {}), "w: invalid shape [-1]");
}

TEST(DcpIndex, ValidatesPlaces) {
  const auto with_place = [](const DcpPlace& place) {
    DcpIndex index = IndexWith({4}, {{{0}, {2}}, {{2}, {2}}});
    index.tensors[0].chunks[1].place = place;
    return FaultOf(index);
  };
  EXPECT_EQ(with_place({0, 100, 5, ""}), "");
  EXPECT_EQ(with_place({0, 99, 5, ""}), "w: record at byte 99 of __0_0.distcp overlaps a record of w");
  EXPECT_EQ(with_place({}), "w: has a chunk without a file");
  EXPECT_EQ(with_place({0, 100, 5, "zstd"}), "w: unsupported transform 'zstd'");
  EXPECT_THAT(with_place({0, -1, 5, ""}), HasSubstr("invalid position (5 bytes at byte -1)"));
  EXPECT_THAT(with_place({0, INT64_MAX, INT64_MAX, ""}), HasSubstr("invalid position"));
}

TEST(DcpIndex, RejectsFilesOutsideDirectory) {
  for (const char* name : {"../secret", "/etc/passwd", "a/b", "..", ".", ""}) {
    DcpIndex index = IndexWith({4}, {{{0}, {4}}});
    index.files[0] = name;
    EXPECT_THAT(FaultOf(index), HasSubstr("is not a plain file name")) << name;
  }
}

TEST(DcpIndex, ReportsAThousandViolationsAndCountsTheRest) {
  const DcpViolations violations = CheckIndex(IndexWith({4}, std::vector<Rectangle>(5000, {{9}, {9}})));
  EXPECT_EQ(violations.size(), 1000u);
  EXPECT_EQ(violations.left_out(), 4000);
  DcpViolations twice;
  twice.Add(violations);
  twice.Add(violations);
  EXPECT_EQ(twice.size(), 1000u);
  EXPECT_EQ(twice.count(), 9000) << "those that were told are known";
}

TEST(DcpIndex, ReportsNestedRecords) {
  DcpIndex index = IndexWith({4}, {{{0}, {2}}, {{2}, {1}}, {{3}, {1}}});
  index.tensors[0].chunks[1].place = {0, 10, 10, ""};
  index.tensors[0].chunks[2].place = {0, 50, 10, ""};
  EXPECT_EQ(CheckIndex(index).size(), 2u);
}

// A hostile index must not take hours to check.
TEST(DcpIndex, ReportsTooManyChunksToCompare) {
  std::vector<Rectangle> columns;
  for (int64_t column = 0; column < 40000; ++column) columns.push_back({{0, column}, {2, 1}});
  EXPECT_EQ(FaultOf({2, 40000}, columns),
            "w: has 40000 non-contiguous chunks, too many to check for overlaps");
  columns.resize(2000);
  EXPECT_EQ(FaultOf({2, 2000}, columns), "");
  // A legitimate case with thousands of ranks: column shards that are split by row again.
  columns.clear();
  for (int64_t row = 0; row < 40000; ++row) {
    for (const int64_t column : {0, 4}) columns.push_back({{row, column}, {1, 4}});
  }
  EXPECT_EQ(FaultOf({40000, 8}, columns), "");
  columns.back().sizes = {1, 3};
  columns.push_back({{17, 3}, {1, 2}});
  EXPECT_THAT(FaultOf({40000, 8}, columns), HasSubstr("overlap"));
}

TEST(DcpIndex, ReportsUnknownType) {
  DcpIndex index = IndexWith({4}, {{{0}, {4}}});
  index.tensors[0].type_name = "qint8";
  index.tensors[0].type = nullptr;
  EXPECT_EQ(FaultOf(index), "w: unsupported dtype qint8");
}

}  // namespace
}  // namespace fsdpd
