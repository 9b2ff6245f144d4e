#include "client/meant_verb.h"

#include <gtest/gtest.h>

namespace fsdpd {
namespace {

// "del" and "new" were taken for get, "stop" for top, "jobs" for logs.
TEST(MeantVerb, WordsOfOtherToolsAreKnown) {
  const std::vector<std::string> verbs = {"--help", "submit", "cancel", "delete",
                                          "get",    "logs",   "top",    "wait"};
  for (const char* word : {"del", "rm"}) EXPECT_EQ(MeantVerb(word, verbs), "delete") << word;
  for (const char* word : {"new", "create"}) EXPECT_EQ(MeantVerb(word, verbs), "submit") << word;
  for (const char* word : {"stop", "kill"}) EXPECT_EQ(MeantVerb(word, verbs), "cancel") << word;
  for (const char* word : {"jobs", "ls", "list", "ps"}) EXPECT_EQ(MeantVerb(word, verbs), "get") << word;
  EXPECT_EQ(MeantVerb("ls", {"--help", "list"}), "list") << "the verb of a synonym is not among these";
}

TEST(MeantVerb, AShortWordIsNotTakenForAnotherOne) {
  const std::vector<std::string> verbs = {"submit", "get", "logs", "top"};
  EXPECT_EQ(MeantVerb("bobs", verbs), "");
  EXPECT_EQ(MeantVerb("gte", verbs), "get");
  EXPECT_EQ(MeantVerb("lgos", verbs), "logs");
  EXPECT_EQ(MeantVerb("sumbit", verbs), "submit");
}

}  // namespace
}  // namespace fsdpd
