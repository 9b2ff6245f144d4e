#include "fsdp/data/token_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/temp_dir.h"
#include "fsdp/data/testing/megatron_files.h"

namespace fsdpd {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class TokenFileTest : public ::testing::Test {
 protected:
  template <typename T>
  TokenSource Write(const std::vector<T>& ids, TokenType type) {
    std::string bytes;
    for (T id : ids) Append(id, &bytes);
    WriteBytes(dir_.File("tokens.bin"), bytes);
    return TokenSource{dir_.File("tokens.bin"), 1, type};
  }

  TokenSource Megatron() const { return TokenSource{dir_.File("corpus"), 1, TokenType::kMegatron}; }

  std::string OpenError(const TokenSource& source) {
    return TokenFile::Open(source, /*vocab_size=*/100).status().ToString();
  }

  TempDir dir_;
};

std::vector<int64_t> ReadAll(const TokenFile& file) {
  std::vector<int64_t> ids(file.tokens());
  const absl::Status status = file.Read(0, file.tokens(), ids.data());
  EXPECT_TRUE(status.ok()) << status;
  return ids;
}

TEST_F(TokenFileTest, ReadsFlatFilesOfAllWidths) {
  const std::vector<int64_t> ids = {1, 200, 3};
  EXPECT_EQ(ReadAll(**TokenFile::Open(Write<uint8_t>({1, 200, 3}, TokenType::kU8), 1000)), ids);
  EXPECT_EQ(ReadAll(**TokenFile::Open(Write<uint16_t>({1, 200, 3}, TokenType::kU16), 1000)), ids);
  EXPECT_EQ(ReadAll(**TokenFile::Open(Write<uint32_t>({1, 200, 3}, TokenType::kU32), 1000)), ids);
}

// Regression test: the header of numpy.save was read as tokens, the first of which was out of range by
// chance.
TEST_F(TokenFileTest, RejectsNumpyFiles) {
  const std::string magic = "\x93NUMPY", header = magic + std::string(122, ' ');
  WriteBytes(dir_.File("a.npy"), header);
  EXPECT_THAT(OpenError({dir_.File("a.npy"), 1, TokenType::kU16}),
              HasSubstr("a.npy: .npy files are not supported; write the array without a header: "
                        "tokens.tofile(PATH)"));
  const auto file = TokenFile::Open(Write<uint8_t>(std::vector<uint8_t>(128), TokenType::kU8), 100);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_THAT((*file)->OpenMask(dir_.File("a.npy")).ToString(), HasSubstr("mask.tofile(PATH)"));
  WriteBytes(dir_.File("short"), magic.substr(0, 5));
  EXPECT_THAT(OpenError({dir_.File("short"), 1, TokenType::kU8}), Not(HasSubstr("npy")));
}

std::string TraitsOf(const TokenSource& source) {
  const auto file = TokenFile::Open(source, 1000);
  EXPECT_TRUE(file.ok()) << file.status();
  const auto traits = (*file)->Traits();
  EXPECT_TRUE(traits.ok()) << traits.status();
  return *traits;
}

TEST_F(TokenFileTest, TraitsDependOnSampledContent) {
  std::vector<uint16_t> ids(100'003, 7);
  const std::string usual = TraitsOf(Write(ids, TokenType::kU16));
  EXPECT_THAT(usual,
              HasSubstr("tokens.bin = 200006 bytes, 200006 of them tokens of 2 bytes, hash of a sample "));
  EXPECT_EQ(TraitsOf(Write(ids, TokenType::kU16)), usual);
  for (const size_t place : {0, 1000, 28'000, 57'000, 85'000, 100'002}) {
    std::vector<uint16_t> other = ids;
    other[place] = 8;
    EXPECT_NE(TraitsOf(Write(other, TokenType::kU16)), usual) << place;
  }
  ids.pop_back();
  EXPECT_THAT(TraitsOf(Write(ids, TokenType::kU16)), HasSubstr("200004 bytes"));
}

TEST_F(TokenFileTest, TraitsOfShortAndMegatronFiles) {
  EXPECT_THAT(TraitsOf(Write<uint8_t>({}, TokenType::kU8)), HasSubstr("= 0 bytes, 0 of them"));
  EXPECT_NE(TraitsOf(Write<uint8_t>({1, 2, 3}, TokenType::kU8)),
            TraitsOf(Write<uint8_t>({1, 2, 4}, TokenType::kU8)));
  // Bytes past the index's end are not data, but distinguish the file.
  WriteMegatron<uint16_t>(dir_.File("corpus"), 8, {2, 0, 3}, {1, 2, 3, 4, 5});
  EXPECT_THAT(TraitsOf(Megatron()), HasSubstr("corpus.bin = 10 bytes, 10 of them tokens of 2 bytes"));
  WriteMegatron<uint16_t>(dir_.File("corpus"), 8, {2, 0}, {1, 2, 3, 4, 5});
  EXPECT_THAT(TraitsOf(Megatron()), HasSubstr("corpus.bin = 10 bytes, 4 of them tokens of 2 bytes"));
}

TEST_F(TokenFileTest, ReadsRange) {
  const auto file = TokenFile::Open(Write<uint16_t>({10, 11, 12, 13}, TokenType::kU16), 100);
  int64_t ids[2];
  ASSERT_TRUE((*file)->Read(1, 2, ids).ok());
  EXPECT_EQ(ids[0], 11);
  EXPECT_EQ(ids[1], 12);
  EXPECT_TRUE((*file)->Read(4, 0, nullptr).ok());
}

TEST_F(TokenFileTest, ReadsMegatronDocumentsAsOneStream) {
  WriteMegatron<uint16_t>(dir_.File("corpus"), 8, {2, 0, 3}, {1, 2, 3, 4, 5});
  const auto file = TokenFile::Open(Megatron(), 100);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(ReadAll(**file), (std::vector<int64_t>{1, 2, 3, 4, 5}));
  WriteMegatron<int64_t>(dir_.File("corpus"), 5, {2, 3}, {1, 2, 3, 4, 99});
  EXPECT_EQ(ReadAll(**TokenFile::Open(Megatron(), 100)), (std::vector<int64_t>{1, 2, 3, 4, 99}));
}

TEST_F(TokenFileTest, NamesMissingHalfOfMegatronPair) {
  EXPECT_THAT(OpenError(Megatron()), HasSubstr("corpus.idx: open: No such"));
  WriteBytes(dir_.File("corpus.idx"), "");
  EXPECT_THAT(OpenError(Megatron()), HasSubstr("corpus.bin: open: No such"));
  WriteBytes(dir_.File("corpus.bin"), "");
  EXPECT_THAT(OpenError(Megatron()), HasSubstr("corpus.idx: header is truncated"));
  EXPECT_THAT(
      OpenError({dir_.File("corpus.bin"), 1, TokenType::kMegatron}),
      HasSubstr("corpus.bin.idx: open: No such file or directory (type megatron: the path goes without"));
}

TEST_F(TokenFileTest, RejectsIncompleteLastToken) {
  EXPECT_THAT(OpenError(Write(std::vector<uint8_t>(23, 0), TokenType::kU32)),
              HasSubstr("last token starts at byte 20"));
}

TEST_F(TokenFileTest, RejectsTokenOutsideVocabulary) {
  const auto flat = TokenFile::Open(Write<uint16_t>({1, 2, 3, 100, 4}, TokenType::kU16), 100);
  int64_t ids[5];
  EXPECT_TRUE((*flat)->Read(0, 3, ids).ok());
  EXPECT_THAT(
      (*flat)->Read(2, 3, ids).ToString(),
      HasSubstr(
          "tokens.bin: token 100 at byte 6 is not below vocab_size 100 (is data.tokens[].type right?)"));
  WriteMegatron<int64_t>(dir_.File("corpus"), 5, {4}, {1, -7, 1, int64_t{1} << 40});
  const auto megatron = TokenFile::Open(Megatron(), 100);
  EXPECT_THAT((*megatron)->Read(0, 4, ids).ToString(),
              HasSubstr("corpus.bin: token -7 at byte 8 is negative"));
  EXPECT_THAT((*megatron)->Read(2, 2, ids).ToString(),
              HasSubstr("token 1099511627776 at byte 24 is not below"));
}

TEST_F(TokenFileTest, ReadsMask) {
  const auto file = TokenFile::Open(Write<uint16_t>({10, 11, 12, 13}, TokenType::kU16), 100);
  uint8_t counts[3];
  ASSERT_TRUE((*file)->ReadMask(0, 3, counts).ok());
  EXPECT_EQ(std::vector<uint8_t>(counts, counts + 3), (std::vector<uint8_t>{1, 1, 1})) << "there is none";
  EXPECT_EQ(*(*file)->MaskTraits(), "");
  WriteBytes(dir_.File("mask"), std::string("\1\0\0\1", 4));
  ASSERT_TRUE((*file)->OpenMask(dir_.File("mask")).ok());
  ASSERT_TRUE((*file)->ReadMask(1, 3, counts).ok());
  EXPECT_EQ(std::vector<uint8_t>(counts, counts + 3), (std::vector<uint8_t>{0, 0, 1}));
  EXPECT_THAT(*(*file)->MaskTraits(), HasSubstr("mask = 4 bytes, hash of a sample "));
}

TEST_F(TokenFileTest, RejectsMismatchedMask) {
  const auto file = TokenFile::Open(Write<uint16_t>({10, 11, 12, 13}, TokenType::kU16), 100);
  EXPECT_THAT((*file)->OpenMask(dir_.File("mask")).ToString(), HasSubstr("mask: open: No such file"));
  for (const size_t bytes : {0, 3, 5, 8}) {
    WriteBytes(dir_.File("mask"), std::string(bytes, '\1'));
    EXPECT_THAT((*file)->OpenMask(dir_.File("mask")).ToString(),
                HasSubstr("mask: wrong mask size (got " + std::to_string(bytes) + " bytes"));
  }
  WriteBytes(dir_.File("mask"),
             "\1\1"
             "01");
  ASSERT_TRUE((*file)->OpenMask(dir_.File("mask")).ok());
  uint8_t counts[4];
  EXPECT_THAT((*file)->ReadMask(1, 3, counts).ToString(),
              HasSubstr("mask: byte 2: invalid mask value (got 48"));
}

TEST_F(TokenFileTest, MaskLengthMatchesMegatronIndex) {
  WriteMegatron<uint16_t>(dir_.File("corpus"), 8, {2, 0}, {1, 2, 3, 4, 5});
  const auto file = TokenFile::Open(Megatron(), 100);
  WriteBytes(dir_.File("mask"), std::string(5, '\1'));
  EXPECT_THAT((*file)->OpenMask(dir_.File("mask")).ToString(), HasSubstr("wrong mask size (got 5 bytes"));
  WriteBytes(dir_.File("mask"), std::string(2, '\1'));
  EXPECT_TRUE((*file)->OpenMask(dir_.File("mask")).ok());
}

TEST_F(TokenFileTest, ReportsByteOfTruncation) {
  const TokenSource source = Write(std::vector<uint16_t>(50, 0), TokenType::kU16);
  const auto file = TokenFile::Open(source, 100);
  ASSERT_EQ(truncate(source.path.c_str(), 10), 0);
  int64_t ids[50];
  EXPECT_THAT((*file)->Read(0, 50, ids).ToString(), HasSubstr("(ends at byte 10, had 100 bytes)"));
}

}  // namespace
}  // namespace fsdpd
