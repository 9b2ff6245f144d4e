#include "client/migrate/shell_words.h"

#include <gtest/gtest.h>

namespace fsdpd {
namespace {

std::vector<std::string> Words(const std::string& text) {
  std::vector<ShellWord> words;
  EXPECT_TRUE(SplitShellWords(text, "args.sh", &words).empty());
  std::vector<std::string> texts;
  for (const ShellWord& word : words) texts.push_back(word.text);
  return texts;
}

using Texts = std::vector<std::string>;

TEST(ShellWords, SplitsLikeShell) {
  EXPECT_EQ(Words("--a 1\t--b\n'two words'"), (Texts{"--a", "1", "--b", "two words"}));
  EXPECT_EQ(Words("--a \\\n  1 # said why\n--b=\"x y\"z"), (Texts{"--a", "1", "--b=x yz"}));
  EXPECT_EQ(Words("a\\ b 'it'\\''s'"), (Texts{"a b", "it's"}));
  EXPECT_EQ(Words(""), Texts{});
  EXPECT_EQ(Words("x \\"), (Texts{"x", "\\"}));
  EXPECT_EQ(Words("A=(--lr 1e-3) '(x)'"), (Texts{"A=", "(", "--lr", "1e-3", ")", "(x)"}));
}

TEST(ShellWords, RecordsPlaces) {
  std::vector<ShellWord> words;
  ASSERT_TRUE(SplitShellWords("--a 1 \\\n  --b", "args.sh", &words).empty());
  ASSERT_EQ(words.size(), 3u);
  EXPECT_EQ(words[2].place.line, 2);
  EXPECT_EQ(words[2].place.column, 3);
}

TEST(ShellWords, FindsShellOperators) {
  std::vector<ShellWord> words;
  ASSERT_TRUE(
      SplitShellWords("a 2>&1 | tee <x \"|\" '>' <path> 3 &\nb\n(\nc\n)\\\n d", "in", &words).empty());
  std::string ends, starts;
  for (const ShellWord& word : words) {
    if (word.ends_command) ends += word.text + " ";
    if (word.starts_line) starts += word.text + " ";
  }
  EXPECT_EQ(ends, "2>&1 | <x & ");
  EXPECT_EQ(starts, "b ( ");
}

TEST(ShellWords, RejectsUnknownVariables) {
  std::vector<ShellWord> words;
  const LocatedViolations variable = SplitShellWords("--seed 1\n--lr \"$LR\"", "args.sh", &words);
  ASSERT_EQ(variable.size(), 1u);
  EXPECT_EQ(variable[0].violation.rule, "shell_variable");
  EXPECT_EQ(variable[0].violation.reason, "the value of $LR is not in this text");
  EXPECT_EQ(variable[0].place.line, 2);
  EXPECT_EQ(variable[0].place.column, 7);
  const LocatedViolations quote = SplitShellWords("--name 'open\n", "args.sh", &words);
  ASSERT_EQ(quote.size(), 1u);
  EXPECT_EQ(quote[0].violation.rule, "open_quote");
  EXPECT_EQ(quote[0].place.column, 8);
}

// Regression: a variable was reported as unknown although the script sets it in its first line.
TEST(ShellWords, ExpandsAssignedVariables) {
  const auto expanded = [](const std::string& text, size_t left) {
    std::vector<ShellWord> words;
    const LocatedViolations violations = SplitShellWords(text, "args.sh", &words, /*expand=*/true);
    EXPECT_EQ(violations.size(), left) << text;
    Texts texts;
    for (const ShellWord& word : words) texts.push_back(word.text);
    return texts;
  };
  EXPECT_EQ(expanded("TP=8 --tp $TP --x=\"a${TP}b\"", 0), (Texts{"TP=8", "--tp", "8", "--x=a8b"}));
  EXPECT_EQ(expanded("A=1\nB=${A}0\nx $B", 0), (Texts{"A=1", "B=10", "x", "10"}));
  EXPECT_EQ(expanded("ARGS=\"--lr 1 --bf16\" x $ARGS", 0),
            (Texts{"ARGS=--lr 1 --bf16", "x", "--lr", "1", "--bf16"}));
  EXPECT_EQ(expanded("M=(--lr 1) x ${M[@]} \"${M[@]}\" --y", 0),
            (Texts{"M=", "(", "--lr", "1", ")", "x", "--y"}));
  EXPECT_EQ(expanded("$TP TP=8", 1), (Texts{"$TP", "TP=8"})) << "not yet";
  EXPECT_EQ(expanded("TP=$1 --tp $TP", 2), (Texts{"TP=$1", "--tp", "$TP"}));
  EXPECT_EQ(expanded("TP=8 --tp ${TP:-4} ${M[@]} '$TP'$TP", 2),
            (Texts{"TP=8", "--tp", "8", "${M[@]}", "$TP$TP"}));
  EXPECT_EQ(expanded("--tp ${TP:-4} --lr \"${1:-3e-4}\" ${A:=1} ${B:-$C}", 3),
            (Texts{"--tp", "4", "--lr", "3e-4", "${A:=1}", "${B:-$C}"}));
}

TEST(ShellWords, BoundsExpansionOfDoublingVariables) {
  std::string text = "A=0123456789";
  for (int line = 0; line < 40; ++line) text += "\nA=$A$A";
  std::vector<ShellWord> words;
  const LocatedViolations violations = SplitShellWords(text, "args.sh", &words, /*expand=*/true);
  size_t bytes = 0;
  for (const ShellWord& word : words) bytes += word.text.size();
  EXPECT_LT(bytes, 4u << 20);
  EXPECT_FALSE(violations.empty()) << "unexpanded variables are reported";
}

}  // namespace
}  // namespace fsdpd
