#include "fsdp/data/packed_documents.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "base/temp_dir.h"
#include "fsdp/data/permutation.h"

namespace fsdpd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kEnd = 1;

class PackedDocumentsTest : public ::testing::Test {
 protected:
  // Documents of these lengths, each with its end token.
  std::unique_ptr<TokenFile> Write(const std::vector<int64_t>& lengths, int64_t unended = 0) {
    std::vector<uint16_t> ids;
    for (const int64_t length : lengths) {
      for (int64_t i = 1; i < length; ++i) ids.push_back(static_cast<uint16_t>(2 + ids.size() % 100));
      ids.push_back(kEnd);
    }
    for (int64_t i = 0; i < unended; ++i) ids.push_back(7);
    std::ofstream file(dir_.File("tokens"), std::ios::binary | std::ios::trunc);
    file.write(reinterpret_cast<const char*>(ids.data()), static_cast<std::streamsize>(ids.size() * 2));
    file.close();
    return *TokenFile::Open({dir_.File("tokens"), 1, TokenType::kU16}, 200);
  }

  PackedDocuments Pack(const std::vector<int64_t>& lengths, const PackingOptions& options) {
    return *PackedDocuments::Make(*Write(lengths), options);
  }

  TempDir dir_;
};

std::vector<std::vector<int64_t>> LengthsOf(const PackedDocuments& packed) {
  std::vector<std::vector<int64_t>> lengths;
  for (int64_t sample = 0; sample < packed.samples(); ++sample) {
    lengths.emplace_back();
    for (const DocumentRange& range : packed.DocumentsOf(sample)) lengths.back().push_back(range.tokens);
  }
  return lengths;
}

// Lengths of chats: lognormal with a median of 360 tokens, from 2 to 16384.
std::vector<int64_t> ChatLengths(int64_t count, uint64_t seed) {
  std::vector<int64_t> lengths;
  for (int64_t i = 0; i < count; ++i) {
    // The sum of 12 uniform numbers is nearly normal.
    double normal = -6;
    for (int k = 0; k < 12; ++k) normal += std::ldexp(static_cast<double>(Mix(Mix(seed, i), k) >> 11), -53);
    lengths.push_back(std::clamp<int64_t>(std::llround(360 * std::exp(0.9 * normal)), 2, 16384));
  }
  return lengths;
}

TEST_F(PackedDocumentsTest, LongestFirstIntoTheFullestSample) {
  const PackedDocuments packed = Pack({3, 6, 4, 5, 2}, {10, kEnd});
  EXPECT_THAT(LengthsOf(packed), ElementsAre(ElementsAre(5, 3, 2), ElementsAre(6, 4)));
  EXPECT_EQ(packed.DocumentsOf(1)[0], (DocumentRange{3, 6}));
  EXPECT_EQ(packed.DocumentsOf(1)[1], (DocumentRange{9, 4}));
  EXPECT_EQ(packed.padding(), 0);
  EXPECT_NEAR(Pack({3, 6}, {10, kEnd}).padding(), 0.1, 1e-12);
}

TEST_F(PackedDocumentsTest, TooLongDocumentsAreTruncatedSplitOrDropped) {
  const std::vector<int64_t> lengths = {4, 12, 5};
  const PackedDocuments truncated = Pack(lengths, {5, kEnd, TooLong::kTruncate});
  EXPECT_THAT(LengthsOf(truncated), ElementsAre(ElementsAre(4), ElementsAre(5), ElementsAre(5)));
  EXPECT_EQ(truncated.DocumentsOf(1)[0], (DocumentRange{4, 5}));
  const PackedDocuments dropped = Pack(lengths, {5, kEnd, TooLong::kDrop});
  EXPECT_THAT(LengthsOf(dropped), ElementsAre(ElementsAre(4), ElementsAre(5)));
  const PackedDocuments split = Pack(lengths, {5, kEnd, TooLong::kSplit});
  // Tokens 4 to 15: each except for the first is a target of one part.
  std::vector<DocumentRange> parts;
  for (int64_t sample = 0; sample < split.samples(); ++sample) {
    for (const DocumentRange& range : split.DocumentsOf(sample)) {
      if (range.begin >= 4 && range.begin < 16) parts.push_back(range);
    }
  }
  std::sort(parts.begin(), parts.end(),
            [](const DocumentRange& a, const DocumentRange& b) { return a.begin < b.begin; });
  EXPECT_THAT(parts, ElementsAre(DocumentRange{4, 5}, DocumentRange{8, 5}, DocumentRange{12, 4}));
  for (const PackedDocuments* packed : {&truncated, &dropped, &split}) {
    EXPECT_EQ(packed->documents(), 3);
    EXPECT_EQ(packed->too_long(), 1);
  }
}

TEST_F(PackedDocumentsTest, FileEndEndsDocument) {
  const auto packed = PackedDocuments::Make(*Write({4}, /*unended=*/3), {10, kEnd});
  EXPECT_THAT(LengthsOf(*packed), ElementsAre(ElementsAre(4, 3)));
}

TEST_F(PackedDocumentsTest, RejectsEndTokenThatDoesNotOccur) {
  EXPECT_EQ(PackedDocuments::Make(*Write({}, /*unended=*/10), {10, kEnd})->samples(), 1);
  EXPECT_THAT(PackedDocuments::Make(*Write({}, /*unended=*/11), {10, kEnd}).status().ToString(),
              HasSubstr("tokens: no document ends (none of the 11 tokens is 1); write "));
}

TEST_F(PackedDocumentsTest, DocumentsWithoutTargetAreLeftOut) {
  EXPECT_THAT(LengthsOf(Pack({1, 3, 1, 2}, {10, kEnd})), ElementsAre(ElementsAre(3, 2)));
  const auto none = PackedDocuments::Make(*Write({1, 1, 9}), {4, kEnd, TooLong::kDrop});
  EXPECT_THAT(
      none.status().ToString(),
      HasSubstr("tokens: no document to train on (got 3 documents, 1 of them longer than a sample of 4"));
}

TEST_F(PackedDocumentsTest, NoTokenIsLostOrDoubled) {
  for (const int64_t count : {1, 2, 17, 1000, 40000}) {  // The last are several groups.
    const std::vector<int64_t> lengths = ChatLengths(count, count);
    for (const TooLong too_long : {TooLong::kSplit, TooLong::kDrop}) {
      const std::unique_ptr<TokenFile> file = Write(lengths);
      const auto packed = PackedDocuments::Make(*file, {513, kEnd, too_long, 5});
      ASSERT_TRUE(packed.ok()) << packed.status();
      std::vector<int> inputs(file->tokens()), targets(file->tokens());
      for (int64_t sample = 0; sample < packed->samples(); ++sample) {
        int64_t tokens = 0;
        for (const DocumentRange& range : packed->DocumentsOf(sample)) {
          tokens += range.tokens;
          for (int64_t t = range.begin; t + 1 < range.begin + range.tokens; ++t) {
            ++inputs[t];
            ++targets[t + 1];
          }
        }
        EXPECT_LE(tokens, 513);
      }
      int64_t begin = 0;
      for (const int64_t length : lengths) {
        const int used = too_long == TooLong::kSplit || length <= 513 ? 1 : 0;
        for (int64_t t = begin; t < begin + length; ++t) {
          ASSERT_EQ(targets[t], t == begin ? 0 : used);
          ASSERT_EQ(inputs[t], t == begin + length - 1 ? 0 : used);
        }
        begin += length;
      }
    }
  }
}

TEST_F(PackedDocumentsTest, PaddingIsBelowFivePercentOfChats) {
  for (const int64_t sequence : {2048, 4096, 8192}) {
    const PackedDocuments packed = Pack(ChatLengths(20000, 3), {sequence + 1, kEnd, TooLong::kTruncate, 1});
    EXPECT_LT(packed.padding(), 0.05) << sequence;
    EXPECT_GT(packed.padding(), 0) << sequence;
  }
}

// Regression: an evaluation of some samples had the longest documents only.
TEST_F(PackedDocumentsTest, FirstSamplesInFileOrderHaveDocumentsOfAllLengths) {
  const std::vector<int64_t> lengths = ChatLengths(5000, 3);
  const PackedDocuments packed = Pack(lengths, {4097, kEnd});
  int64_t documents = 0, tokens = 0;
  for (int64_t sample = 0; sample < 50; ++sample) {
    for (const DocumentRange& range : packed.DocumentsOf(sample)) {
      ++documents;
      tokens += range.tokens;
    }
  }
  const double mean = static_cast<double>(std::accumulate(lengths.begin(), lengths.end(), int64_t{0})) / 5000;
  EXPECT_NEAR(static_cast<double>(tokens) / static_cast<double>(documents), mean, 0.5 * mean);
}

TEST_F(PackedDocumentsTest, SeedShufflesDocuments) {
  const std::vector<int64_t> lengths = ChatLengths(20000, 3);
  const auto first_of = [&](std::optional<uint64_t> seed) {
    const PackedDocuments packed = Pack(lengths, {2049, kEnd, TooLong::kTruncate, seed});
    std::vector<int64_t> begins;
    for (int64_t sample = 0; sample < 100; ++sample) begins.push_back(packed.DocumentsOf(sample)[0].begin);
    return begins;
  };
  EXPECT_EQ(first_of(1), first_of(1));
  EXPECT_NE(first_of(1), first_of(2));
  EXPECT_NE(first_of(1), first_of(std::nullopt));
}

}  // namespace
}  // namespace fsdpd
