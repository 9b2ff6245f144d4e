#include "fsdp/data/megatron_index.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>

#include "base/temp_dir.h"
#include "fsdp/data/testing/megatron_files.h"

namespace fsdpd {
namespace {

using ::testing::HasSubstr;

class MegatronIndexTest : public ::testing::Test {
 protected:
  absl::StatusOr<MegatronIndex> Read(const std::string& idx_bytes, int64_t bin_bytes) {
    WriteBytes(dir_.File("a.idx"), idx_bytes);
    if (bin_bytes != bin_bytes_) WriteBytes(dir_.File("a.bin"), std::string(bin_bytes, '\1'));
    bin_bytes_ = bin_bytes;
    const auto idx = InputFile::Open(dir_.File("a.idx"));
    const auto bin = InputFile::Open(dir_.File("a.bin"));
    return ReadMegatronIndex(**idx, **bin);
  }

  // The error for a modified index of three sequences with 3, 0 and 5 tokens of 4 bytes. Sizes are at byte
  // 34, pointers at 46, the four document entries at 70; the end is at 102.
  std::string ErrorOf(const std::function<void(MegatronTables*)>& change, int64_t bin_bytes = 32) {
    MegatronTables tables = TablesOf({3, 0, 5}, 4, 4);
    change(&tables);
    return ErrorOf(tables.Bytes(), bin_bytes);
  }

  std::string ErrorOf(const std::string& idx_bytes, int64_t bin_bytes = 32) {
    const absl::Status status = Read(idx_bytes, bin_bytes).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(status.ToString(), HasSubstr(dir_.File("a.")));
    return status.ToString();
  }

  std::string ErrorOfBytes(size_t begin, const std::string& bytes) {
    return ErrorOf(TablesOf({3, 0, 5}, 4, 4).Bytes().replace(begin, bytes.size(), bytes));
  }

  TempDir dir_;
  int64_t bin_bytes_ = -1;  // Size on disk.
};

TEST_F(MegatronIndexTest, ReturnsTypeAndTotalTokens) {
  const auto index = Read(TablesOf({3, 0, 5}, 4, 4).Bytes(), 32);
  ASSERT_TRUE(index.ok()) << index.status();
  EXPECT_EQ(index->type, StoredId::kI32);
  EXPECT_EQ(index->tokens, 8);
  EXPECT_EQ(index->sequences, 3);
  EXPECT_EQ(index->documents, 3);
}

TEST_F(MegatronIndexTest, SupportsEveryIntegerType) {
  const std::vector<std::pair<uint8_t, StoredId>> types = {{1, StoredId::kU8},  {2, StoredId::kI8},
                                                           {3, StoredId::kI16}, {4, StoredId::kI32},
                                                           {5, StoredId::kI64}, {8, StoredId::kU16}};
  for (const auto& [code, type] : types) {
    const auto index = Read(TablesOf({3, 0, 5}, code, BytesOf(type)).Bytes(), 8 * BytesOf(type));
    ASSERT_TRUE(index.ok()) << index.status();
    EXPECT_EQ(index->type, type);
    EXPECT_EQ(index->tokens, 8);
  }
}

TEST_F(MegatronIndexTest, AllowsModesLongerBinAndEmptyIndex) {
  EXPECT_TRUE(Read(TablesOf({3, 0, 5}, 4, 4).Bytes() + std::string(3, '\0'), 32).ok());
  EXPECT_EQ(Read(TablesOf({3, 0, 5}, 4, 4).Bytes(), 100)->tokens, 8);
  EXPECT_EQ(Read(TablesOf({}, 4, 4).Bytes(), 0)->tokens, 0);
}

TEST_F(MegatronIndexTest, ValidatesLongIndex) {
  const std::vector<int32_t> sizes(20000, 1);
  EXPECT_EQ(Read(TablesOf(sizes, 8, 2).Bytes(), 40000)->tokens, 20000);
  MegatronTables tables = TablesOf(sizes, 8, 2);
  tables.pointers[19000] += 2;
  EXPECT_THAT(ErrorOf(tables.Bytes(), 40000),
              HasSubstr("sequence 19000 at byte 232034 starts at byte 38002"));
  tables = TablesOf(sizes, 8, 2);
  tables.documents[19000] = 18998;
  EXPECT_THAT(ErrorOf(tables.Bytes(), 40000),
              HasSubstr("document entry 19000 at byte 392034 is 18998, which is not between 18999 and"));
}

TEST_F(MegatronIndexTest, RejectsInvalidHeader) {
  EXPECT_THAT(ErrorOf(""), HasSubstr("got 0 bytes, want 34"));
  EXPECT_THAT(ErrorOf("TNTIDX\0\0 and so on"), HasSubstr("byte 0 does not start an index"));
  EXPECT_THAT(ErrorOfBytes(9, std::string(1, 2)), HasSubstr("version at byte 9 is not supported (got 2"));
  EXPECT_THAT(ErrorOfBytes(17, std::string(1, 7)),
              HasSubstr("type at byte 17 is not supported (got 7: floating point"));
  EXPECT_THAT(ErrorOfBytes(17, std::string(1, 9)),
              HasSubstr("type at byte 17 is not supported (got 9: unknown"));
}

TEST_F(MegatronIndexTest, RejectsCountsBeyondFile) {
  EXPECT_THAT(
      ErrorOfBytes(18, std::string(8, '\xff')),
      HasSubstr("ends at byte 102, but its header (byte 18) declares 18446744073709551615 sequences"));
  EXPECT_THAT(ErrorOfBytes(26, std::string(8, '\x7f')), HasSubstr("header (byte 26) declares"));
  const std::string bytes = TablesOf({3, 0, 5}, 4, 4).Bytes();
  EXPECT_THAT(ErrorOf(bytes.substr(0, 69)),
              HasSubstr("ends at byte 69, but its header (byte 18) declares 3 seq"));
  EXPECT_THAT(ErrorOf(bytes.substr(0, 101)),
              HasSubstr("ends at byte 101, but its header (byte 26) declares 4"));
  EXPECT_THAT(ErrorOf(bytes + "x"), HasSubstr("1 bytes follow the last table at byte 102"));
}

TEST_F(MegatronIndexTest, RejectsNonContiguousSequences) {
  EXPECT_THAT(ErrorOf([](MegatronTables* t) { t->sizes[1] = -1; }),
              HasSubstr("a.idx: sequence 1 at byte 38 has -1 tokens"));
  EXPECT_THAT(
      ErrorOf([](MegatronTables* t) { t->pointers[0] = 4; }),
      HasSubstr("sequence 0 at byte 46 starts at byte 4 of the .bin, but the one before it ends at 0"));
  EXPECT_THAT(
      ErrorOf([](MegatronTables* t) { t->pointers[2] = 16; }, 100),
      HasSubstr("sequence 2 at byte 62 starts at byte 16 of the .bin, but the one before it ends at 12"));
  EXPECT_THAT(ErrorOf([](MegatronTables* t) { t->pointers[2] = -8; }), HasSubstr("starts at byte -8"));
  EXPECT_THAT(ErrorOf([](MegatronTables* t) { t->pointers[1] = std::numeric_limits<int64_t>::max(); }),
              HasSubstr("sequence 1 at byte 54 starts at byte 9223372036854775807"));
}

TEST_F(MegatronIndexTest, RejectsTruncatedBin) {
  EXPECT_THAT(ErrorOf([](MegatronTables*) {}, 31),
              HasSubstr("a.bin: ends at byte 31, but sequence 2 of the index (byte 42 of "));
}

TEST_F(MegatronIndexTest, RejectsUnorderedDocuments) {
  EXPECT_THAT(ErrorOf([](MegatronTables* t) { t->documents = {}; }),
              HasSubstr("document entries at byte 26 is 0"));
  EXPECT_THAT(ErrorOf([](MegatronTables* t) { t->documents[0] = 1; }),
              HasSubstr("the first document at byte 70 starts with sequence 1"));
  EXPECT_THAT(ErrorOf([](MegatronTables* t) { t->documents[2] = 0; }),
              HasSubstr("document entry 2 at byte 86 is 0, which is not between 1 and the 3 sequences"));
  EXPECT_THAT(ErrorOf([](MegatronTables* t) { t->documents[3] = 4; }), HasSubstr("entry 3 at byte 94 is 4"));
  EXPECT_THAT(ErrorOf([](MegatronTables* t) { t->documents[3] = 2; }),
              HasSubstr("the last document entry at byte 94 is 2, but there are 3 sequences"));
}

TEST_F(MegatronIndexTest, SurvivesEveryTruncation) {
  const std::string bytes = TablesOf({3, 0, 5}, 4, 4).Bytes();
  for (size_t size = 0; size < bytes.size(); ++size) EXPECT_NE(ErrorOf(bytes.substr(0, size)), "") << size;
}

TEST_F(MegatronIndexTest, SurvivesEveryDamagedByte) {
  const std::string bytes = TablesOf({3, 0, 5}, 4, 4).Bytes();
  int let_through = 0;
  for (size_t i = 0; i < bytes.size(); ++i) {
    for (int mask : {1, 2, 4, 128, 255}) {
      std::string damaged = bytes;
      damaged[i] = static_cast<char>(damaged[i] ^ mask);
      const auto index = Read(damaged, 32);
      if (!index.ok()) {
        EXPECT_TRUE(absl::IsInvalidArgument(index.status())) << index.status();
        continue;
      }
      ++let_through;
      EXPECT_GE(index->tokens, 0) << i << " " << mask;
      EXPECT_LE(index->tokens * BytesOf(index->type), 32) << i << " " << mask;
    }
  }
  // Valid modifications: a last sequence of 4 or of 1 token, a second or third document that starts one
  // sequence earlier or later.
  EXPECT_EQ(let_through, 4);
}

}  // namespace
}  // namespace fsdpd
