#include "fsdp/data/token_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <set>

#include "base/temp_dir.h"

namespace fsdpd {
namespace {

using ::testing::HasSubstr;

class TokenSourceTest : public ::testing::Test {
 protected:
  template <typename T>
  TokenSource Write(const std::vector<T>& ids, TokenType type) {
    std::ofstream(dir_.File("tokens.bin"), std::ios::binary)
        .write(reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(T));
    return TokenSource{dir_.File("tokens.bin"), 1, type};
  }

  std::string OpenError(const TokenSource& file) {
    return OpenTokenFile(file, {/*window_tokens=*/5, /*vocab_size=*/100, /*seed=*/1}).status().ToString();
  }

  TempDir dir_;
};

template <typename T>
std::vector<T> Iota(int count) {
  std::vector<T> ids(count);
  for (int i = 0; i < count; ++i) ids[i] = static_cast<T>(i);
  return ids;
}

TEST_F(TokenSourceTest, AnEpochReadsEveryWindowOnceAndConsecutively) {
  const auto file = OpenTokenFile(Write(Iota<uint16_t>(23), TokenType::kU16), {5, 100, 1});
  ASSERT_TRUE(file.ok());
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    std::set<int64_t> seen;
    for (int64_t i = 0; i < 4; ++i) {  // 23 tokens hold 4 windows of 5.
      int64_t window[5];
      ASSERT_TRUE((*file)->Read(epoch * 4 + i, window).ok());
      for (int k = 0; k < 5; ++k) EXPECT_EQ(window[k], (window[0] + k) % 23);  // The file is a ring.
      seen.insert(window, window + 5);
    }
    EXPECT_EQ(seen.size(), 20u);
  }
}

TEST_F(TokenSourceTest, ReadsAllWidths) {
  int64_t window[5];
  const auto u8 = OpenTokenFile(Write(std::vector<uint8_t>(5, 200), TokenType::kU8), {5, 1 << 20, 1});
  ASSERT_TRUE((*u8)->Read(0, window).ok());
  EXPECT_EQ(window[3], 200);
  const auto u32 = OpenTokenFile(Write(std::vector<uint32_t>(5, 70000), TokenType::kU32), {5, 1 << 20, 1});
  ASSERT_TRUE((*u32)->Read(0, window).ok());
  EXPECT_EQ(window[3], 70000);
}

TEST_F(TokenSourceTest, NamesAMissingFile) {
  EXPECT_THAT(OpenError({dir_.File("absent.bin"), 1, TokenType::kU8}),
              HasSubstr("absent.bin: open: No such"));
}

TEST_F(TokenSourceTest, RefusesADirectory) {
  EXPECT_THAT(OpenError({dir_.path(), 1, TokenType::kU8}), HasSubstr("not a regular file"));
}

TEST_F(TokenSourceTest, RefusesAnEmptyOrShortFileWithItsSize) {
  EXPECT_THAT(OpenError(Write(std::vector<uint8_t>{}, TokenType::kU8)), HasSubstr("holds 0 tokens"));
  EXPECT_THAT(OpenError(Write(Iota<uint16_t>(4), TokenType::kU16)),
              HasSubstr("holds 4 tokens (8 bytes), but one sample takes 5"));
}

TEST_F(TokenSourceTest, RefusesATornLastTokenWithItsOffset) {
  EXPECT_THAT(OpenError(Write(Iota<uint8_t>(23), TokenType::kU32)), HasSubstr("byte 20 starts a torn one"));
}

TEST_F(TokenSourceTest, NamesATokenOutsideTheVocabularyByItsOffset) {
  const auto file =
      OpenTokenFile(Write(std::vector<uint16_t>{1, 2, 3, 100, 4}, TokenType::kU16), {5, 100, 1});
  int64_t window[5];
  EXPECT_THAT((*file)->Read(0, window).ToString(),
              HasSubstr("token 100 at byte 6 is not below vocab_size 100"));
}

TEST_F(TokenSourceTest, SaysWhereAFileThatShrankEnds) {
  const TokenSource source = Write(Iota<uint8_t>(50), TokenType::kU8);
  const auto file = OpenTokenFile(source, {5, 100, 1});
  ASSERT_EQ(truncate(source.path.c_str(), 0), 0);
  int64_t window[5];
  EXPECT_THAT((*file)->Read(0, window).ToString(), HasSubstr("had 50 bytes when the job started"));
}

TEST(SyntheticTokens, RepeatForTheSameSeedAndStayInTheVocabulary) {
  const TokenReaderOptions options{65, 11, 42};
  int64_t a[65], b[65], other[65];
  ASSERT_TRUE(MakeSyntheticTokens(options)->Read(9, a).ok());
  ASSERT_TRUE(MakeSyntheticTokens(options)->Read(9, b).ok());
  ASSERT_TRUE(MakeSyntheticTokens({65, 11, 43})->Read(9, other).ok());
  EXPECT_TRUE(std::equal(a, a + 65, b));
  EXPECT_FALSE(std::equal(a, a + 65, other));
  EXPECT_EQ(std::set<int64_t>(a, a + 65).size(), 11u);  // All of a small vocabulary, and nothing else.
  EXPECT_LT(*std::max_element(a, a + 65), 11);
}

}  // namespace
}  // namespace fsdpd
