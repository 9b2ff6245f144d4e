#include "fsdp/data/token_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "base/check.h"
#include "base/temp_dir.h"
#include "fsdp/data/testing/megatron_files.h"

namespace fsdpd {
namespace {

using ::testing::HasSubstr;

class TokenSourceTest : public ::testing::Test {
 protected:
  // A file with ids 0, 1, 2, ...
  TokenSource Write(int tokens) {
    std::string bytes;
    for (int i = 0; i < tokens; ++i) Append(static_cast<uint16_t>(i), &bytes);
    WriteBytes(dir_.File("tokens.bin"), bytes);
    return TokenSource{dir_.File("tokens.bin"), 1, TokenType::kU16};
  }

  TempDir dir_;
};

absl::StatusOr<std::unique_ptr<TokenReader>> Windows(const TokenSource& source,
                                                     const TokenReaderOptions& options) {
  FSDPD_ASSIGN_OR_RETURN(std::unique_ptr<TokenFile> file, TokenFile::Open(source, options.vocab_size));
  if (!source.mask.empty()) FSDPD_RETURN_IF_ERROR(file->OpenMask(source.mask));
  return MakeFileWindows(std::move(file), options);
}

// The first tokens of windows [begin, end) of a source.
std::vector<int64_t> Starts(const TokenReader& reader, int64_t begin, int64_t end) {
  std::vector<int64_t> starts;
  TokenWindow window;
  for (int64_t i = begin; i < end; ++i) {
    EXPECT_TRUE(reader.Read(i, &window).ok());
    starts.push_back(window.ids[0]);
  }
  return starts;
}

TEST_F(TokenSourceTest, EpochReadsEachWindowOnce) {
  const auto file = Windows(Write(23), {5, 100, 1});
  ASSERT_TRUE(file.ok());
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    std::set<int64_t> seen;
    for (int64_t i = 0; i < 4; ++i) {  // 23 tokens contain 4 windows of 5.
      TokenWindow window;
      ASSERT_TRUE((*file)->Read(epoch * 4 + i, &window).ok());
      const std::vector<int64_t>& ids = window.ids;
      for (int k = 0; k < 5; ++k) EXPECT_EQ(ids[k], (ids[0] + k) % 23);  // The file is a ring.
      for (int k = 0; k < 5; ++k) EXPECT_EQ(window.detached[k], k > 0 && ids[k] == 0);
      seen.insert(ids.begin(), ids.end());
    }
    EXPECT_EQ(seen.size(), 20u);
  }
}

TEST_F(TokenSourceTest, OrderDiffersBetweenEpochs) {
  const auto file = Windows(Write(500), {5, 1000, 1});
  ASSERT_TRUE(file.ok());
  // The index of the window, independent of the epoch's offset.
  const auto place_in_file = [](std::vector<int64_t> starts) {
    const int64_t offset = *std::min_element(starts.begin(), starts.end());
    for (int64_t& start : starts) start = (start - offset) / 5;
    return starts;
  };
  const auto first = Starts(**file, 0, 100);
  const auto second = Starts(**file, 100, 200);
  EXPECT_NE(place_in_file(first), place_in_file(second));
  EXPECT_EQ(std::set<int64_t>(second.begin(), second.end()).size(), 100u);
  EXPECT_FALSE(std::is_sorted(first.begin(), first.end()));
}

TEST_F(TokenSourceTest, OrderDependsOnSeed) {
  const TokenSource source = Write(500);
  EXPECT_NE(Starts(**Windows(source, {5, 1000, 1}), 0, 100), Starts(**Windows(source, {5, 1000, 2}), 0, 100));
}

TEST_F(TokenSourceTest, MegatronFilesGiveWindowsOfFlatFiles) {
  std::vector<uint16_t> ids(50);
  std::iota(ids.begin(), ids.end(), 0);
  WriteMegatron<uint16_t>(dir_.File("corpus"), 8, {7, 0, 13, 30}, ids);
  const auto megatron = Windows({dir_.File("corpus"), 1, TokenType::kMegatron}, {5, 100, 1});
  ASSERT_TRUE(megatron.ok()) << megatron.status();
  EXPECT_EQ(Starts(**megatron, 0, 30), Starts(**Windows(Write(50), {5, 100, 1}), 0, 30));
}

TEST_F(TokenSourceTest, MaskFollowsTokensAroundTheRing) {
  TokenSource source = Write(23);
  std::string mask;
  for (int i = 0; i < 23; ++i) mask.push_back(static_cast<char>(i % 3 == 0));
  WriteBytes(dir_.File("mask"), mask);
  source.mask = dir_.File("mask");
  const auto windows = Windows(source, {5, 100, 1});
  ASSERT_TRUE(windows.ok()) << windows.status();
  TokenWindow window;
  for (int64_t i = 0; i < 12; ++i) {
    ASSERT_TRUE((*windows)->Read(i, &window).ok());
    for (int k = 0; k < 5; ++k) EXPECT_EQ(window.counts[k], window.ids[k] % 3 == 0) << window.ids[k];
  }
}

TEST_F(TokenSourceTest, RejectsShortFile) {
  EXPECT_THAT(Windows(Write(0), {5, 100, 1}).status().ToString(), HasSubstr("got 0 tokens"));
  EXPECT_THAT(Windows(Write(4), {5, 100, 1}).status().ToString(),
              HasSubstr("tokens.bin: file is too short (got 4 tokens, want at least 5"));
}

TEST_F(TokenSourceTest, SlicesAreInFileOrderAndOverlapInOneToken) {
  const auto slices = MakeFileSlices(*TokenFile::Open(Write(14), 100), {5, 100, 1});
  ASSERT_TRUE(slices.ok()) << slices.status();
  EXPECT_EQ((*slices)->samples(), 4);
  EXPECT_EQ(Starts(**slices, 0, 4), (std::vector<int64_t>{0, 4, 8, 12}));
  TokenWindow window;
  ASSERT_TRUE((*slices)->Read(3, &window).ok());
  EXPECT_EQ(window.ids, (std::vector<int64_t>{12, 13}));
  EXPECT_EQ(MakeFileSlices(*TokenFile::Open(Write(13), 100), {5, 100, 1}).value()->samples(), 3);
  EXPECT_THAT(MakeFileSlices(*TokenFile::Open(Write(1), 100), {5, 100, 1}).status().ToString(),
              HasSubstr("file is too short for evaluation (got 1 tokens, want at least 2)"));
}

TEST_F(TokenSourceTest, DocumentWindowsReadEachDocumentOncePerEpoch) {
  TokenSource source = Write(23);
  std::string mask;
  for (int i = 0; i < 23; ++i) mask.push_back(static_cast<char>(i % 3 == 0));
  WriteBytes(dir_.File("mask"), mask);
  std::unique_ptr<TokenFile> file = *TokenFile::Open(source, 100);
  ASSERT_TRUE(file->OpenMask(dir_.File("mask")).ok());
  // Documents 0 to 9 and 10 to 22.
  const auto windows = MakeDocumentWindows(std::move(file), {6, 9, TooLong::kSplit, 4});
  ASSERT_TRUE(windows.ok()) << windows.status();
  const int64_t samples = (*windows)->samples();
  std::vector<std::vector<int64_t>> orders;
  for (int64_t epoch = 0; epoch < 4; ++epoch) {
    std::multiset<int64_t> targets;
    orders.emplace_back();
    for (int64_t i = 0; i < samples; ++i) {
      TokenWindow window;
      ASSERT_TRUE((*windows)->Read(epoch * samples + i, &window).ok());
      orders.back().push_back(window.ids[0]);
      for (size_t k = 0; k < window.ids.size(); ++k) {
        EXPECT_EQ(window.counts[k], window.ids[k] % 3 == 0);
        if (window.detached[k] == 0) targets.insert(window.ids[k]);
      }
      EXPECT_EQ(window.detached[0], 1);
    }
    std::multiset<int64_t> expected;
    for (int64_t id = 0; id < 23; ++id) {
      if (id != 0 && id != 10) expected.insert(id);
    }
    EXPECT_EQ(targets, expected);
  }
  EXPECT_NE(orders[0], orders[1]);
  std::sort(orders[0].begin(), orders[0].end());
  std::sort(orders[1].begin(), orders[1].end());
  EXPECT_EQ(orders[0], orders[1]);  // The same samples in another order.
}

TEST(SyntheticTokens, AreDeterministicAndWithinVocabulary) {
  const TokenReaderOptions options{65, 11, 42};
  TokenWindow a, b, other;
  ASSERT_TRUE(MakeSyntheticTokens(options)->Read(9, &a).ok());
  ASSERT_TRUE(MakeSyntheticTokens(options)->Read(9, &b).ok());
  ASSERT_TRUE(MakeSyntheticTokens({65, 11, 43})->Read(9, &other).ok());
  EXPECT_EQ(a.ids, b.ids);
  EXPECT_NE(a.ids, other.ids);
  EXPECT_EQ(std::set<int64_t>(a.ids.begin(), a.ids.end()).size(), 11u);  // All ids of a small vocabulary.
  EXPECT_LT(*std::max_element(a.ids.begin(), a.ids.end()), 11);
  EXPECT_EQ(a.counts, std::vector<uint8_t>(65, 1));
}

}  // namespace
}  // namespace fsdpd
