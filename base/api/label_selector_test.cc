#include "base/api/label_selector.h"

#include <gtest/gtest.h>

namespace fsdpd {
namespace {

// Like a message of the API.
struct Label {
  std::string the_key, the_value;
  const std::string& key() const { return the_key; }
  const std::string& value() const { return the_value; }
};

bool Finds(const std::string& selector, const std::vector<Label>& labels) {
  const auto parsed = ParseSelector(selector);
  EXPECT_TRUE(parsed.ok()) << selector << ": " << parsed.status();
  return parsed.ok() && Matches(*parsed, labels);
}

TEST(LabelSelector, MatchesIfAllRulesHold) {
  const std::vector<Label> labels = {{"team", "a"}, {"example.com/stage", "test"}};
  EXPECT_TRUE(Finds("", labels));
  EXPECT_TRUE(Finds("team=a", labels));
  EXPECT_TRUE(Finds("team==a, example.com/stage", labels));
  EXPECT_TRUE(Finds("team!=b,!owner", labels));
  EXPECT_TRUE(Finds("owner!=me", labels)) << "what is not there is not that";
  EXPECT_FALSE(Finds("team=b", labels));
  EXPECT_FALSE(Finds("team=a,owner", labels));
  EXPECT_FALSE(Finds("!team", labels));
  EXPECT_FALSE(Finds("team!=a", labels));
  EXPECT_FALSE(Finds("owner=", labels));
}

TEST(LabelSelector, FirstBrokenReturnsTheRule) {
  const Selector selector = *ParseSelector("team==a, stage!=test,owner,!old");
  std::vector<Label> labels = {{"team", "b"}, {"stage", "test"}, {"old", ""}};
  std::string told, text;
  for (const LabelRule& rule : selector) text += TextOf(rule) + ";";
  EXPECT_EQ(text, "team=a;stage!=test;owner;!old;");
  const auto tell = [&] {
    const LabelRule* broken = FirstBroken(selector, labels);
    told += (broken == nullptr ? "holds" : WhyNot(*broken)) + ";";
  };
  tell();
  labels[0].the_value = "a";
  tell();
  labels[1].the_value = "live";
  tell();
  labels.push_back({"owner", ""});
  tell();
  labels.erase(labels.begin() + 2);
  tell();
  EXPECT_EQ(told, "is not team=a;is stage=test;has no label owner;has the label old;holds;");
}

TEST(LabelSelector, RejectsInvalidSelectors) {
  for (const char* text : {",", "team=a,", "=a", "!", "team in (a)", "a=b=c", "team=a;b"})
    EXPECT_TRUE(absl::IsInvalidArgument(ParseSelector(text).status())) << text;
}

}  // namespace
}  // namespace fsdpd
