#include "base/text.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace fsdpd {
namespace {

TEST(Nearest, FindsMisspelledWord) {
  const std::vector<std::string> names = {"strategy", "prefetch_bytes", "recompute", "outer"};
  EXPECT_EQ(Nearest("stratgy", names), "strategy");
  EXPECT_EQ(Nearest("prefetch_byte", names), "prefetch_bytes");
  EXPECT_EQ(Nearest("otuer", names), "outer");
}

TEST(Nearest, RejectsUnrelatedWords) {
  EXPECT_EQ(Nearest("banana", {"strategy", "outer"}), "");
  EXPECT_EQ(Nearest("", {"outer"}), "");
}

// Regression: --profile a100 suggested h100, llama3-405b suggested llama3-70b.
TEST(Nearest, RejectsNamesWithOtherNumbers) {
  const std::vector<std::string> names = {"h100",       "h200", "cpu",          "llama3-8b",
                                          "llama3-70b", "gpt2", "qwen3-30b-a3b"};
  for (const char* other : {"a100", "h300", "h20", "b200", "llama3-405b", "llama3-7b", "llama2-70b",
                            "llama-70b", "gpt3", "qwen3-30b-a4b", "qwen3-32b"})
    EXPECT_EQ(Nearest(other, names), "") << other;
  EXPECT_EQ(Nearest("llama3-8c", names), "llama3-8b");
  EXPECT_EQ(Nearest("lama3-70b", names), "llama3-70b");
  EXPECT_EQ(Nearest("llama3_70b", names), "llama3-70b");
  EXPECT_EQ(Nearest("gtp2", names), "gpt2");
  EXPECT_EQ(Nearest("H100", {"h100"}), "h100");
  EXPECT_EQ(Nearest("cpi", names), "cpu");
  EXPECT_EQ(Nearest("h2O0", names), "h200");
}

TEST(ParseBytes, ReadsUnits) {
  EXPECT_EQ(ParseBytes("512").value(), 512);
  EXPECT_EQ(ParseBytes("1.5GiB").value(), 1610612736);
  EXPECT_EQ(ParseBytes("2GB").value(), 2000000000);
  EXPECT_EQ(ParseBytes("64 KiB").value(), 65536);
}

TEST(ParseBytes, RejectsInvalidSizes) {
  for (const char* text : {"", "GiB", "-1", "1.5 apples", "nan", "1e30", "99999999TiB"}) {
    EXPECT_FALSE(ParseBytes(text).ok()) << text;
  }
}

TEST(Human, PrintsUnits) {
  EXPECT_EQ(HumanBytes(512), "512 B");
  EXPECT_EQ(HumanBytes(1610612736), "1.50 GiB");
  EXPECT_EQ(HumanSeconds(0.95), "950 ms");
  EXPECT_EQ(HumanSeconds(185), "3 m 05 s");
  EXPECT_EQ(HumanSeconds(7800), "2 h 10 m");
  EXPECT_EQ(HumanCount(8030000000), "8.0 B");
}

TEST(Human, PrintsInvalidValues) {
  EXPECT_EQ(HumanSeconds(1e308), "1000000000 h 00 m");
  EXPECT_EQ(HumanSeconds(std::nan("")), "nan ms");
  EXPECT_EQ(HumanBytes(std::numeric_limits<int64_t>::min()), "-8192.0 PiB");
}

TEST(CutText, CutsBetweenCharacters) {
  EXPECT_EQ(CutText("abc", 3), "abc");
  EXPECT_EQ(CutText("abcd", 3), "abc");
  EXPECT_EQ(CutText("ab\u00fc", 3), "ab");  // Two bytes, of which only one would fit.
  EXPECT_EQ(CutText("\u20ac\u20ac", 5), "\u20ac");
  EXPECT_EQ(CutText("\u20ac", 0), "");
}

}  // namespace
}  // namespace fsdpd
