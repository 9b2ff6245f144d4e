#include "client/flags/suggest_command.h"

#include <gtest/gtest.h>

namespace fsdpd {
namespace {

// Regression: suggestions were get for "del" and "new", top for "stop", and logs for "jobs".
TEST(SuggestCommand, SuggestsCommandForSynonym) {
  const std::vector<std::string> verbs = {"--help", "submit", "cancel", "delete",
                                          "get",    "logs",   "top",    "wait"};
  for (const char* word : {"del", "rm"}) EXPECT_EQ(SuggestCommand(word, verbs), "delete") << word;
  for (const char* word : {"new", "create"}) EXPECT_EQ(SuggestCommand(word, verbs), "submit") << word;
  for (const char* word : {"stop", "kill"}) EXPECT_EQ(SuggestCommand(word, verbs), "cancel") << word;
  for (const char* word : {"jobs", "ls", "list", "ps"}) EXPECT_EQ(SuggestCommand(word, verbs), "get") << word;
  EXPECT_EQ(SuggestCommand("ls", {"--help", "list"}), "list")
      << "the command of the synonym is not a candidate";
}

TEST(SuggestCommand, ShortWordMustMatchFirstLetter) {
  const std::vector<std::string> verbs = {"submit", "get", "logs", "top"};
  EXPECT_EQ(SuggestCommand("bobs", verbs), "");
  EXPECT_EQ(SuggestCommand("gte", verbs), "get");
  EXPECT_EQ(SuggestCommand("lgos", verbs), "logs");
  EXPECT_EQ(SuggestCommand("sumbit", verbs), "submit");
}

}  // namespace
}  // namespace fsdpd
