#include "agent/logs/log_lines.h"

#include <absl/strings/match.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

#include "base/limits.h"
#include "base/temp_dir.h"

namespace fsdpd {
namespace {

using Lines = std::vector<std::string>;

Lines Split(const std::string& bytes, size_t piece) {
  LineSplitter splitter;
  Lines lines;
  for (size_t at = 0; at < bytes.size(); at += piece) splitter.Append(bytes.substr(at, piece), &lines);
  splitter.Finish(&lines);
  return lines;
}

TEST(LineSplitter, SplitsAcrossReads) {
  for (size_t piece : {1, 2, 3, 100}) {
    EXPECT_EQ(Split("one\n\ntwo\r\nthree", piece), (Lines{"one", "", "two", "three"})) << piece;
  }
  EXPECT_EQ(Split("", 1), Lines{});
  EXPECT_EQ(Split("\n", 1), Lines{""});
}

TEST(LineSplitter, TruncatesLongLines) {
  const Lines lines = Split(std::string(kMaxLogLineBytes + 5, 'x') + "\nnext\n", 1000);
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0], std::string(kMaxLogLineBytes, 'x') + " [5 bytes cut]");
  EXPECT_EQ(lines[1], "next");
  EXPECT_EQ(Split(std::string(kMaxLogLineBytes, 'x'), 77), Lines{std::string(kMaxLogLineBytes, 'x')});
}

TEST(LineSplitter, KeepsACharacterSplitBetweenReads) { EXPECT_EQ(Split("Ω€😀\n", 1), Lines{"Ω€😀"}); }

TEST(ValidUtf8, ReplacesInvalidBytes) {
  const std::string bad = "\xEF\xBF\xBD";
  EXPECT_EQ(ValidUtf8("plain Ω"), "plain Ω");
  EXPECT_EQ(ValidUtf8("a\xff"
                      "b"),
            "a" + bad + "b");
  EXPECT_EQ(ValidUtf8("\xc3"), bad);                                // broken off
  EXPECT_EQ(ValidUtf8("\xc0\x80"), bad + bad);                      // overlong
  EXPECT_EQ(ValidUtf8("\xed\xa0\x80"), bad + bad + bad);            // surrogate
  EXPECT_EQ(ValidUtf8("\xf4\x90\x80\x80"), bad + bad + bad + bad);  // beyond U+10FFFF
}

// Lines from the offset on.
std::string Tail(const std::string& content, int lines, int64_t max_bytes = 1 << 20) {
  TempDir dir;
  std::ofstream(dir.File("log")) << content;
  const int fd = open(dir.File("log").c_str(), O_RDONLY);
  const int64_t offset = TailOffset(fd, static_cast<int64_t>(content.size()), lines, max_bytes);
  close(fd);
  return content.substr(static_cast<size_t>(offset));
}

TEST(TailOffset, FindsLastLines) {
  EXPECT_EQ(Tail("a\nb\nc\n", 2), "b\nc\n");
  EXPECT_EQ(Tail("a\nb\nc", 2), "b\nc");
  EXPECT_EQ(Tail("a\nb\n", 9), "a\nb\n");
  EXPECT_EQ(Tail("", 3), "");
  EXPECT_EQ(Tail("\n\n\n", 2), "\n\n");
}

TEST(TailOffset, CrossesBlocksAndStopsAtTheByteLimit) {
  std::string content;
  for (int i = 0; i < 50000; ++i) content += "line " + std::to_string(i) + "\n";
  const std::string tail = Tail(content, 10000, 1 << 30);
  EXPECT_TRUE(absl::StartsWith(tail, "line 40000\n"));
  EXPECT_EQ(Tail(content, 10000, 100).size(), 100u);
}

std::string WithNotice(const std::string& content) {
  TempDir dir;
  std::ofstream(dir.File("log")) << content;
  EXPECT_TRUE(AppendNotice(dir.File("log"), "words").ok());
  std::ifstream file(dir.File("log"));
  return std::string(std::istreambuf_iterator<char>(file), {});
}

TEST(AppendNotice, StartsANewLineAfterATornOne) {
  EXPECT_EQ(WithNotice(""), "[fsdpd-agent: words]\n");
  EXPECT_EQ(WithNotice("a\n"), "a\n[fsdpd-agent: words]\n");
  EXPECT_EQ(WithNotice("a\nb"), "a\nb\n[fsdpd-agent: words]\n");
  EXPECT_FALSE(AppendNotice("/no/such/directory/log", "words").ok());
}

}  // namespace
}  // namespace fsdpd
