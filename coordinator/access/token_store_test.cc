#include "coordinator/access/token_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdio.h>
#include <sys/stat.h>

#include <fstream>

#include "base/api/bearer_token.h"
#include "base/temp_dir.h"

namespace fsdpd {
namespace {

using ::testing::HasSubstr;

std::string Line(const std::string& name, const std::string& role, const std::string& token) {
  return name + " " + role + " " + HashOfToken(token) + "\n";
}

std::string FaultOf(const std::string& text) { return std::string(ParseTokens(text).status().message()); }

TEST(ParseTokens, ParsesLinesAndSkipsComments) {
  const auto tokens = ParseTokens("# people\n\n" + Line("alice", "admin", "a") + "  \t\n" + "bob\tviewer   " +
                                  HashOfToken("b") + "\r\n" + Line("alice", "admin", "a2"));
  ASSERT_TRUE(tokens.ok()) << tokens.status();
  ASSERT_EQ(tokens->size(), 3u);
  EXPECT_EQ((*tokens)[1].principal.name, "bob");
  EXPECT_EQ((*tokens)[1].principal.role, PrincipalRole::kViewer);
  EXPECT_EQ((*tokens)[2].principal.name, "alice")
      << "a name may have two tokens while one replaces the other";
  EXPECT_TRUE(ParseTokens("")->empty());
}

TEST(ParseTokens, FourthWordIsProject) {
  std::string line = Line("alice", "admin", "a");
  line.insert(line.size() - 1, " vision");
  const auto tokens = ParseTokens(line + Line("bob", "viewer", "b"));
  ASSERT_TRUE(tokens.ok()) << tokens.status();
  EXPECT_EQ((*tokens)[0].principal.project, "vision");
  EXPECT_EQ((*tokens)[1].principal.project, "");
  line.insert(line.size() - 1, "/x");
  EXPECT_THAT(FaultOf(line), HasSubstr("line 1: a project is 1 to 40 "));
}

TEST(ParseTokens, ReportsLineOfError) {
  const std::string good = Line("alice", "admin", "a");
  EXPECT_EQ(FaultOf(good + "bob viewer\n"),
            "line 2: invalid line (got 2 words, want NAME ROLE HASH [PROJECT])");
  EXPECT_THAT(FaultOf("\n\n" + Line("b\"b", "viewer", "b")), HasSubstr("line 3: a name is 1 to 64 letters"));
  EXPECT_THAT(FaultOf(Line("bob", "root", "b")),
              HasSubstr("line 1: invalid role in the second word; use viewer"));
  EXPECT_THAT(FaultOf(good + good), HasSubstr("line 2: duplicate of the hash in line 1"));
}

TEST(ParseTokens, ErrorDoesNotShowMisplacedToken) {
  const std::string token = NewBearerToken();
  for (const std::string& text : {"bob viewer " + token, "bob " + token + " viewer", token + " x " + token}) {
    const std::string fault = FaultOf(text);
    EXPECT_THAT(fault, HasSubstr("line 1: "));
    EXPECT_EQ(fault.find(token), std::string::npos) << fault;
  }
}

class TokenStoreTest : public ::testing::Test {
 protected:
  void Write(const std::string& text) {
    const std::string half = path_ + ".tmp";
    std::ofstream(half) << text;
    ASSERT_EQ(rename(half.c_str(), path_.c_str()), 0);
  }
  std::unique_ptr<TokenStore> OpenOrDie() {
    auto file = TokenStore::Open(path_, Clock::Real());
    EXPECT_TRUE(file.ok()) << file.status();
    return *std::move(file);
  }

  const TempDir dir_;
  const std::string path_ = dir_.File("tokens");
};

TEST_F(TokenStoreTest, FindsPrincipalOfToken) {
  Write(Line("alice", "admin", "a") + Line("bob", "submitter", "b"));
  const auto file = OpenOrDie();
  EXPECT_EQ(file->Find("a")->name, "alice");
  EXPECT_EQ(file->Find("b")->role, PrincipalRole::kSubmitter);
  for (const std::string& nobodys : {std::string("c"), std::string(), HashOfToken("a")}) {
    EXPECT_FALSE(file->Find(nobodys).has_value()) << nobodys;
  }
}

// The file as `>` leaves it before the new lines are written.
TEST_F(TokenStoreTest, EmptiedFileKeepsTokensButCommentDoesNot) {
  Write(Line("alice", "admin", "a"));
  const auto file = OpenOrDie();
  Write("");
  EXPECT_TRUE(file->Find("a").has_value());
  Write("# nobody\n");
  EXPECT_FALSE(file->Find("a").has_value());
}

// As after a restart of a coordinator whose file was emptied.
TEST_F(TokenStoreTest, RejectsEmptyFileAtStart) {
  Write("");
  EXPECT_THAT(TokenStore::Open(path_, Clock::Real()).status().message(), HasSubstr("tokens: is empty"));
  Write("# nobody\n");
  EXPECT_TRUE(TokenStore::Open(path_, Clock::Real()).ok());
}

TEST_F(TokenStoreTest, ChangesApplyAtNextCall) {
  Write(Line("alice", "admin", "a"));
  const auto file = OpenOrDie();
  ASSERT_TRUE(file->Find("a").has_value());
  // Immediately, and of the same size: the timestamp alone would not differ.
  for (int i = 0; i < 20; ++i) {
    Write(Line("alice", "admin", "b"));
    EXPECT_FALSE(file->Find("a").has_value());
    EXPECT_TRUE(file->Find("b").has_value());
    Write(Line("alice", "admin", "a"));
    EXPECT_TRUE(file->Find("a").has_value());
    EXPECT_FALSE(file->Find("b").has_value());
  }
}

TEST_F(TokenStoreTest, InvalidFileKeepsPreviousTokens) {
  Write(Line("alice", "admin", "a"));
  const auto file = OpenOrDie();
  Write("alice admin\n");
  EXPECT_TRUE(file->Find("a").has_value());
  EXPECT_TRUE(file->Stale());
  ASSERT_EQ(remove(path_.c_str()), 0);
  EXPECT_TRUE(file->Find("a").has_value());
  Write(Line("bob", "admin", "b"));
  EXPECT_FALSE(file->Find("a").has_value()) << "a corrected file takes effect";
  EXPECT_TRUE(file->Find("b").has_value());
  EXPECT_FALSE(file->Stale());
}

TEST_F(TokenStoreTest, RejectsInvalidFileAtStart) {
  EXPECT_THAT(std::string(TokenStore::Open(path_, Clock::Real()).status().message()),
              HasSubstr("No such file"));
  Write("alice\n");
  EXPECT_EQ(TokenStore::Open(path_, Clock::Real()).status().message(),
            path_ + ": line 1: invalid line (got 1 words, want NAME ROLE HASH [PROJECT])");
  Write(Line("alice", "admin", "a"));
  ASSERT_EQ(chmod(path_.c_str(), 0666), 0);
  EXPECT_THAT(std::string(TokenStore::Open(path_, Clock::Real()).status().message()),
              HasSubstr("writable by every user"));
}

}  // namespace
}  // namespace fsdpd
