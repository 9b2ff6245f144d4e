#include "fsdp/checkpoint/format/json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace fsdpd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string ErrorOf(const std::string& text) {
  const auto value = ParseJson(text);
  EXPECT_TRUE(absl::IsDataLoss(value.status())) << text << ": " << value.status();
  return std::string(value.status().message());
}

TEST(Json, ParsesEveryKindOfValue) {
  const auto value =
      ParseJson(" {\"a\" : [1, -2.5e-07 ,true,false,null,\"x\", {}, []] ,\n\t\"b\":{\"c\":0}}\r\n");
  ASSERT_TRUE(value.ok()) << value.status();
  EXPECT_THAT(value->keys, ElementsAre("a", "b"));
  const JsonValue* list = value->Find("a");
  ASSERT_NE(list, nullptr);
  ASSERT_EQ(list->items.size(), 8u);
  EXPECT_EQ(list->items[0].text, "1");
  EXPECT_EQ(list->items[1].text, "-2.5e-07");
  EXPECT_EQ(list->items[1].kind, JsonValue::Kind::kNumber);
  EXPECT_EQ(list->items[2].text, "true");
  EXPECT_EQ(list->items[3].kind, JsonValue::Kind::kFlag);
  EXPECT_EQ(list->items[4].kind, JsonValue::Kind::kNull);
  EXPECT_EQ(list->items[5].kind, JsonValue::Kind::kText);
  EXPECT_EQ(list->items[6].kind, JsonValue::Kind::kObject);
  EXPECT_EQ(list->items[7].kind, JsonValue::Kind::kList);
  EXPECT_EQ(value->Find("b")->Find("c")->text, "0");
  EXPECT_EQ(value->Find("c"), nullptr);
  EXPECT_EQ(list->Find("a"), nullptr);
}

TEST(Json, ParsesEscapes) {
  const auto value = ParseJson(R"("\"\\\/\b\f\n\r\té\u00e9\u20AC\ud83d\ude00\u0000.")");
  ASSERT_TRUE(value.ok()) << value.status();
  EXPECT_EQ(value->text, std::string("\"\\/\b\f\n\r\téé€😀\0.", 21));
  EXPECT_THAT(ErrorOf(R"("\ud83d")"), HasSubstr("unpaired surrogate"));
  EXPECT_THAT(ErrorOf(R"("\ud83d\u0041")"), HasSubstr("unpaired surrogate"));
  EXPECT_THAT(ErrorOf(R"("\ude00")"), HasSubstr("unpaired surrogate"));
  EXPECT_THAT(ErrorOf(R"("\u12g4")"), HasSubstr("byte 5: invalid escape"));
  EXPECT_THAT(ErrorOf(R"("\x41")"), HasSubstr("invalid escape"));
}

TEST(Json, RejectsInvalidJson) {
  for (const char* text : {"",         " ",        "{",          "[",        "\"",
                           "{}x",      "[1,]",     "{\"a\":1,}", "{a:1}",    "{'a':1}",
                           "{\"a\"}",  "{\"a\":}", "[1 2]",      "nul",      "NaN",
                           "Infinity", "-",        "+1",         ".5",       "1.",
                           "1e",       "1e+",      "[01]",       "0x1",      "{\"a\":1 \"b\":2}",
                           "// x\n1",  "\"\n\"",   "\"\\",       "\"\xff\"", "True"}) {
    EXPECT_THAT(ErrorOf(text), HasSubstr("JSON, byte "));
  }
}

TEST(Json, RejectsDuplicateKey) {
  EXPECT_THAT(ErrorOf(R"({"a":1,"b":2,"\u0061":3})"), HasSubstr("duplicate key"));
  EXPECT_TRUE(ParseJson(R"({"a":{"a":1},"b":{"a":2}})").ok());
}

TEST(Json, EnforcesLimits) {
  JsonLimits limits;
  limits.bytes = 7;
  limits.values = 3;
  limits.depth = 2;
  EXPECT_TRUE(ParseJson("[1,2]  ", limits).ok());
  EXPECT_FALSE(ParseJson("[1,2]   ", limits).ok()) << "bytes";
  EXPECT_FALSE(ParseJson("[1,2,3]", limits).ok()) << "values";
  EXPECT_FALSE(ParseJson("[[1]]", limits).ok()) << "depth";
  EXPECT_THAT(ErrorOf(std::string(1'000'000, '[')), HasSubstr("nested too deeply"));
}

}  // namespace
}  // namespace fsdpd
