#include "fsdp/data/token_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "base/temp_dir.h"
#include "fsdp/data/megatron_files.h"

namespace fsdpd {
namespace {

using ::testing::HasSubstr;

class TokenSourceTest : public ::testing::Test {
 protected:
  // Ids 0, 1, 2, ...
  TokenSource Write(int tokens) {
    std::string bytes;
    for (int i = 0; i < tokens; ++i) Append(static_cast<uint16_t>(i), &bytes);
    WriteBytes(dir_.File("tokens.bin"), bytes);
    return TokenSource{dir_.File("tokens.bin"), 1, TokenType::kU16};
  }

  TempDir dir_;
};

// First tokens of windows [begin, end) of a source.
std::vector<int64_t> Starts(const TokenReader& reader, int64_t window_tokens, int64_t begin, int64_t end) {
  std::vector<int64_t> starts;
  std::vector<int64_t> window(window_tokens);
  for (int64_t i = begin; i < end; ++i) {
    EXPECT_TRUE(reader.Read(i, window.data()).ok());
    starts.push_back(window[0]);
  }
  return starts;
}

TEST_F(TokenSourceTest, AnEpochReadsEveryWindowOnceAndConsecutively) {
  const auto file = OpenTokenFile(Write(23), {5, 100, 1});
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

TEST_F(TokenSourceTest, EveryEpochHasAnOrderOfItsOwn) {
  const auto file = OpenTokenFile(Write(500), {5, 1000, 1});
  ASSERT_TRUE(file.ok());
  const auto place_in_file =
      [](std::vector<int64_t> starts) {  // Which window, whatever the epoch's offset is.
        const int64_t offset = *std::min_element(starts.begin(), starts.end());
        for (int64_t& start : starts) start = (start - offset) / 5;
        return starts;
      };
  const auto first = Starts(**file, 5, 0, 100);
  const auto second = Starts(**file, 5, 100, 200);
  EXPECT_NE(place_in_file(first), place_in_file(second));
  EXPECT_EQ(std::set<int64_t>(second.begin(), second.end()).size(), 100u);
  EXPECT_FALSE(std::is_sorted(first.begin(), first.end()));
}

TEST_F(TokenSourceTest, AnotherSeedIsAnotherOrder) {
  const TokenSource source = Write(500);
  EXPECT_NE(Starts(**OpenTokenFile(source, {5, 1000, 1}), 5, 0, 100),
            Starts(**OpenTokenFile(source, {5, 1000, 2}), 5, 0, 100));
}

TEST_F(TokenSourceTest, MegatronsDocumentsGiveTheWindowsOfAFlatFile) {
  std::vector<uint16_t> ids(50);
  std::iota(ids.begin(), ids.end(), 0);
  WriteMegatron<uint16_t>(dir_.File("corpus"), 8, {7, 0, 13, 30}, ids);
  const auto megatron = OpenTokenFile({dir_.File("corpus"), 1, TokenType::kMegatron}, {5, 100, 1});
  ASSERT_TRUE(megatron.ok()) << megatron.status();
  EXPECT_EQ(Starts(**megatron, 5, 0, 30), Starts(**OpenTokenFile(Write(50), {5, 100, 1}), 5, 0, 30));
}

TEST_F(TokenSourceTest, RefusesAnEmptyOrShortFileWithItsSize) {
  EXPECT_THAT(OpenTokenFile(Write(0), {5, 100, 1}).status().ToString(), HasSubstr("holds 0 tokens"));
  EXPECT_THAT(OpenTokenFile(Write(4), {5, 100, 1}).status().ToString(),
              HasSubstr("tokens.bin: holds 4 tokens, but one sample takes 5"));
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
