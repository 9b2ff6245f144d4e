#include "client/text/text_table.h"

#include <gtest/gtest.h>

namespace fsdpd {
namespace {

TEST(TextTable, AlignsColumnsByCharacters) {
  TextTable table({"NAME", "N", "WHY"});
  table.Add({"a", "10", ""});
  table.Add({"größer", "1", "because"});
  EXPECT_EQ(table.Render(),
            "NAME    N   WHY\n"
            "a       10\n"
            "größer  1   because\n");
  EXPECT_EQ(table.Render(1, 13), " NAME    N...\n a       10\n größer  1...\n");
}

TEST(TextTable, TruncatesBetweenCharacters) {
  EXPECT_EQ(Truncate("größer", 6), "größer");
  EXPECT_EQ(Truncate("größere", 6), "grö...");
  EXPECT_EQ(Truncate("abc", 2), "..");
  EXPECT_EQ(Truncate("abc", 0), "");
}

TEST(TextTable, ReplacesControlCharacters) { EXPECT_EQ(OneLine("a\x1b[2Kb\nc"), "a [2Kb c"); }

TEST(TextTable, SplitsMultilineCells) {
  TextTable table({"NAME", "WHY", "N"});
  table.Add({"a", "two faults:\n  one\n  the other", "1"});
  table.Add({"b", "none", "2"});
  EXPECT_EQ(table.Render(),
            "NAME  WHY          N\n"
            "a     two faults:  1\n"
            "        one\n"
            "        the other\n"
            "b     none         2\n");
}

TEST(TextTable, ManyLinesPreservesOnlyLines) {
  EXPECT_EQ(ManyLines("a\x1b[2Kb:\n  c\td\n\n \ne\n"), "a [2Kb:\n  c d\ne");
}

}  // namespace
}  // namespace fsdpd
