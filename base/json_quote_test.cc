#include "base/json_quote.h"

#include <gtest/gtest.h>

namespace fsdpd {
namespace {

TEST(JsonQuote, EscapesQuotesAndBackslashes) {
  EXPECT_EQ(JsonQuoted(""), R"("")");
  EXPECT_EQ(JsonQuoted(R"(C:\a "b")"), R"("C:\\a \"b\"")");
  EXPECT_EQ(JsonQuoted("line\nand\ttab"), R"("line\nand\ttab")");
}

TEST(JsonQuote, EscapesControlCharacters) {
  EXPECT_EQ(JsonQuoted(absl::string_view("\0\x1b[2J\r\x7f", 7)), R"("\u0000\u001b[2J\u000d\u007f")");
}

TEST(JsonQuote, KeepsUtf8) { EXPECT_EQ(JsonQuoted("größer 学习"), "\"größer 学习\""); }

}  // namespace
}  // namespace fsdpd
