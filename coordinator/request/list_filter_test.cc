#include "coordinator/request/list_filter.h"

#include <absl/strings/str_cat.h>
#include <absl/time/civil_time.h>
#include <absl/time/time.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace fsdpd {
namespace {

using ::testing::HasSubstr;

const ListFields& Fields() {
  static const auto& fields =
      *new ListFields{{"name", ListField::Kind::kText},
                      {"size", ListField::Kind::kNumber},
                      {"open", ListField::Kind::kBool},
                      {"time", ListField::Kind::kTime},
                      {"state", ListField::Kind::kName, {"", "GOOD", "", "BAD", "SO_SO"}},
                      {"never", ListField::Kind::kTime},
                      {"note", ListField::Kind::kText},
                      {"zero", ListField::Kind::kNumber},
                      {"shut", ListField::Kind::kBool},
                      {"unsaid", ListField::Kind::kName, {"", "GOOD"}},
                      {"labels.", ListField::Kind::kText}};
  return fields;
}

// Whether the filter matches one object: name "a/b" (two values), size 7, open, time 2026-11-25, state BAD,
// labels team=red and a bare label, and nothing else.
ListValue ValueOf(size_t field, const std::string& key) {
  const int64_t day = absl::ToUnixNanos(absl::FromCivil(absl::CivilDay(2026, 11, 25), absl::UTCTimeZone()));
  const std::vector<ListValue> values = {{{"a/b", "second one"}},
                                         {{}, 7},
                                         {{}, 1},
                                         {{}, day},
                                         {{}, 3},
                                         {{}, 0},
                                         {{""}},
                                         {{}, 0},
                                         {{}, 0},
                                         {{}, 0}};
  if (field < values.size()) return values[field];
  return key == "team" ? ListValue{{"red"}} : key == "bare" ? ListValue{{""}} : ListValue{};
}

bool Holds(const std::string& filter) {
  const auto parsed = ListFilter::Parse(filter, Fields());
  EXPECT_TRUE(parsed.ok()) << filter << ": " << parsed.status();
  return parsed.ok() && parsed->Holds(ValueOf);
}

std::string WhyNot(const std::string& filter) {
  return std::string(ListFilter::Parse(filter, Fields()).status().message());
}

TEST(ListFilter, ComparesEachKindOfField) {
  for (const char* filter : {"",
                             "  ",
                             "name = a/b",
                             "name = \"second one\"",
                             "name = 'second one'",
                             "name != c",
                             "name : cond",
                             "name:*",
                             "size=7",
                             "size != 8",
                             "size < 8",
                             "size <= 7",
                             "size > -1",
                             "size >= 7",
                             "open = true",
                             "open != false",
                             "time >= 2026-11-25",
                             "time < \"2026-11-25T00:00:01Z\"",
                             "state = BAD",
                             "state = bad",
                             "state != GOOD",
                             "state != so-so",
                             "labels.team = red",
                             "labels.team:*",
                             "labels.other != red",
                             "NOT labels.other:*",
                             R"(name != "a\"b")"}) {
    EXPECT_TRUE(Holds(filter)) << filter;
  }
  for (const char* filter : {"name = second", "name != a/b", "name : x", "size = 8", "size < 7",
                             "open = false", "time > 2026-11-25", "state = GOOD", "labels.team = blue",
                             "labels.other = red", "labels.other:*", "labels.other = \"\""}) {
    EXPECT_FALSE(Holds(filter)) << filter;
  }
}

// Regression: it matched empty texts, and was rejected for all other kinds.
TEST(ListFilter, StarTestsPresence) {
  for (const char* field : {"name", "size", "open", "time", "state", "labels.team", "labels.bare"})
    EXPECT_TRUE(Holds(absl::StrCat(field, ":*"))) << field;
  for (const char* field : {"note", "zero", "shut", "never", "unsaid", "labels.other"}) {
    EXPECT_FALSE(Holds(absl::StrCat(field, ":*"))) << field;
    EXPECT_TRUE(Holds(absl::StrCat("NOT ", field, ":*"))) << field;
  }
}

// Regression: waiting jobs were listed as jobs that ended before this year.
TEST(ListFilter, UnsetTimeSatisfiesNoComparison) {
  for (const char* op : {"=", "!=", "<", "<=", ">", ">="}) {
    for (const char* time : {"1970-01-01", "2026-11-25"}) {
      EXPECT_FALSE(Holds(absl::StrCat("never ", op, " ", time))) << op << " " << time;
      EXPECT_TRUE(Holds(absl::StrCat("NOT never ", op, " ", time))) << op << " " << time;
    }
  }
}

TEST(ListFilter, OrBindsTighterThanAnd) {
  EXPECT_TRUE(Holds("size = 7 AND state = BAD"));
  EXPECT_FALSE(Holds("size = 7 AND state = GOOD"));
  EXPECT_TRUE(Holds("size = 8 OR state = BAD"));
  EXPECT_FALSE(Holds("size = 7 OR open = true AND state = GOOD"));  // (size OR open) AND state
  EXPECT_TRUE(Holds("size = 7 OR (open = true AND state = GOOD)"));
  EXPECT_TRUE(Holds("NOT size = 8 AND NOT (state = GOOD OR open = false)"));
  EXPECT_FALSE(Holds("NOT NOT size = 8"));
}

TEST(ListFilter, RejectsInvalidFilterWithOffset) {
  EXPECT_EQ(WhyNot("size = 7 AND colour = red"),
            "at offset 13: unknown field 'colour'; the fields are name, size, open, time, state, never, "
            "note, zero, shut, unsaid, labels.KEY");
  EXPECT_EQ(WhyNot("size"), "at offset 4: missing operator after 'size'; use one of = != < <= > >= :");
  EXPECT_EQ(WhyNot("size ="), "at offset 6: missing value for 'size'");
  EXPECT_EQ(WhyNot("size = many"), "at offset 7: invalid value of size: 'many' is not a whole number");
  EXPECT_EQ(WhyNot("size = 99999999999999999999"),
            "at offset 7: invalid value of size: '99999999999999999999' is not a whole number");
  EXPECT_EQ(WhyNot("open = yes"), "at offset 7: invalid value of open: 'yes' is neither true nor false");
  EXPECT_EQ(WhyNot("state = WORSE"),
            "at offset 8: invalid value of state: 'WORSE' is not one of GOOD, BAD, SO_SO");
  EXPECT_THAT(WhyNot("time > soon"),
              HasSubstr("at offset 7: invalid value of time: 'soon' is not a time such as"));
  EXPECT_EQ(WhyNot("name < b"), "at offset 5: name is neither a number nor a time; use = or !=");
  EXPECT_EQ(WhyNot("size : 7"), "at offset 7: size is not a text field; use = or :*");
  EXPECT_EQ(
      WhyNot("size > 2GiB"),
      "at offset 7: invalid value of size: '2GiB' is not a whole number (units are not supported: write "
      "2147483648)");
  EXPECT_EQ(WhyNot("size > 9999999999TiB"),
            "at offset 7: invalid value of size: '9999999999TiB' is not a whole number");
  EXPECT_EQ(WhyNot("size = 7 and open = true"), "at offset 9: 'and' is not an operator; write AND");
  EXPECT_EQ(WhyNot("(size = 7 Or open = true)"), "at offset 10: 'Or' is not an operator; write OR");
  EXPECT_EQ(WhyNot("not size = 7"), "at offset 0: 'not' is not an operator; write NOT");
  EXPECT_EQ(WhyNot("(size = 7"), "at offset 9: missing ')'");
  EXPECT_EQ(WhyNot("size = 7)"), "at offset 8: unexpected ')'; want AND, OR or the end");
  EXPECT_EQ(WhyNot("size = 7 open = true"), "at offset 9: unexpected 'open'; want AND, OR or the end");
  EXPECT_EQ(WhyNot("size = 7 AND"), "at offset 12: missing comparison");
  EXPECT_EQ(WhyNot("= 7"), "at offset 0: unexpected '='; want a field");
  EXPECT_EQ(WhyNot("name = \"a"), "at offset 7: unterminated quote");
  EXPECT_EQ(WhyNot("size = 7 & open = true"), "at offset 9: unexpected '&'");
  EXPECT_THAT(WhyNot("labels. = 7"), HasSubstr("unknown field 'labels.'"));
}

TEST(ListFilter, BoundsSizeTermsAndDepth) {
  EXPECT_THAT(WhyNot(std::string(kMaxFilterBytes + 1, ' ')), HasSubstr("want at most 4096"));
  std::string many = "size = 7";
  for (size_t i = 0; i < kMaxFilterTerms; ++i) many += " OR size = 7";
  EXPECT_THAT(WhyNot(many), HasSubstr("too many comparisons (want at most 64)"));
  EXPECT_THAT(WhyNot(std::string(20, '(') + "size = 7" + std::string(20, ')')), HasSubstr("nested too deep"));
  std::string nots;
  for (int i = 0; i < 300; ++i) nots += "NOT ";
  EXPECT_THAT(WhyNot(nots + "size = 7"), HasSubstr("nested too deep"));
}

TEST(ListOrder, ParsesFieldAndDirection) {
  const auto order = [](const std::string& text) {
    return ParseListOrder(text, {"name", "size"}, {1, true});
  };
  EXPECT_EQ(order("")->field, 1u);
  EXPECT_TRUE(order(" ")->descending);
  EXPECT_EQ(order("name")->field, 0u);
  EXPECT_FALSE(order("name")->descending);
  EXPECT_FALSE(order("size asc")->descending);
  EXPECT_TRUE(order(" size  desc ")->descending);
  EXPECT_TRUE(order("size DESC")->descending);
  EXPECT_FALSE(order("size Asc")->descending);
  const auto why = [&](const std::string& text) { return std::string(order(text).status().message()); };
  EXPECT_EQ(why("colour"), "at offset 0: unknown field 'colour'; the fields are name, size");
  EXPECT_EQ(why("size up"), "at offset 5: 'up' is neither asc nor desc");
  EXPECT_EQ(why("size desc name"), "at offset 10: unexpected 'name'; lists are ordered by one field");
  EXPECT_EQ(why("size, name"), "at offset 4: unexpected ','");
}

}  // namespace
}  // namespace fsdpd
