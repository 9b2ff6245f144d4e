#include "client/text_table.h"

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

TEST(TextTable, CutsBetweenCharacters) {
  EXPECT_EQ(Cut("größer", 6), "größer");
  EXPECT_EQ(Cut("größere", 6), "grö...");
  EXPECT_EQ(Cut("abc", 2), "..");
  EXPECT_EQ(Cut("abc", 0), "");
}

TEST(TextTable, KeepsForeignTextFromMovingTheCursor) { EXPECT_EQ(OneLine("a\x1b[2Kb\nc"), "a [2Kb c"); }

}  // namespace
}  // namespace fsdpd
