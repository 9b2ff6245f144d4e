#include "base/spec_text/yaml_tree.h"

#include <absl/strings/str_cat.h>
#include <gtest/gtest.h>

#include "base/limits.h"

namespace fsdpd {
namespace {

std::string FirstViolation(absl::string_view text) {
  TextNode root;
  const LocatedViolations violations = ParseYaml(text, "f", &root);
  return violations.empty() ? "" : Render(violations.front());
}

std::string Repeated(absl::string_view piece, int times) {
  std::string text;
  for (int i = 0; i < times; ++i) absl::StrAppend(&text, piece);
  return text;
}

TEST(YamlTree, RecordsPositions) {
  TextNode root;
  ASSERT_TRUE(ParseYaml("a: 1\nb:\n  - x\n  - {c: \"2\"}\n", "f", &root).empty());
  ASSERT_EQ(root.children.size(), 2u);
  const TextNode* b = root.Find("b");
  ASSERT_NE(b, nullptr);
  EXPECT_EQ(b->key_place.line, 2);
  ASSERT_EQ(b->children.size(), 2u);
  EXPECT_EQ(b->children[0].text, "x");
  EXPECT_FALSE(b->children[0].quoted);
  const TextNode* c = b->children[1].Find("c");
  ASSERT_NE(c, nullptr);
  EXPECT_TRUE(c->quoted);
  EXPECT_EQ(c->place.line, 4);
  EXPECT_EQ(c->place.column, 9);
}

TEST(YamlTree, ReadsJsonWithTabsAndByteOrderMark) {
  TextNode root;
  ASSERT_TRUE(ParseYaml("\xEF\xBB\xBF{\n\t\"a\": [1,\n\t\t2],\n\t\"b\": null\n}\n", "f", &root).empty());
  EXPECT_EQ(root.Find("a")->children.size(), 2u);
  EXPECT_EQ(root.Find("b")->kind, TextNode::Kind::kNull);
}

TEST(YamlTree, EmptyTextIsANullRoot) {
  for (const char* text : {"", "\n\n", "# only a comment\n"}) {
    TextNode root;
    EXPECT_TRUE(ParseYaml(text, "f", &root).empty()) << text;
    EXPECT_EQ(root.kind, TextNode::Kind::kNull);
  }
}

TEST(YamlTree, ReportsDuplicateKeys) {
  TextNode root;
  ASSERT_TRUE(ParseYaml("a: {x: 1, y: 2}\nb:\n- {x: 1, x: 2}\n- {x: 1}\na: 3\n", "f", &root).empty());
  std::string told;
  for (const LocatedViolation& located : DuplicateKeys(root)) absl::StrAppend(&told, Render(located), "\n");
  EXPECT_EQ(told,
            "f:3:10: error: b[0].x is written twice; keep one [duplicate_field]\n"
            "f:5:1: error: a is written twice; keep one [duplicate_field]\n");
}

TEST(YamlTree, RejectsTabIndentation) {
  EXPECT_EQ(FirstViolation("train:\n\tsteps: 5\n"),
            "f:2:1: error: a tab cannot indent in YAML; indent with spaces [syntax]");
}

TEST(YamlTree, RejectsAnchorsAndAliases) {
  EXPECT_EQ(FirstViolation("a: &x [1]\nb: *x\n"),
            "f:1:4: error: anchors (&name) are not allowed; write the value out [alias]");
}

TEST(YamlTree, RejectsDeepNesting) {
  const std::string too_deep = "error: nested deeper than 32 levels [too_deep]";
  EXPECT_EQ(FirstViolation(Repeated("[", 33) + Repeated("]", 33)), "f:1:33: " + too_deep);
  EXPECT_EQ(FirstViolation(Repeated("- ", 100'000)), "f:1:65: " + too_deep);
  EXPECT_NE(FirstViolation(Repeated("[", 100'000)), "");
  EXPECT_EQ(FirstViolation(Repeated("[", 32) + Repeated("]", 32)), "");
}

TEST(YamlTree, RejectsTooManyValues) {
  EXPECT_EQ(FirstViolation("[" + Repeated("1,", 19'998) + "1]"), "");
  EXPECT_EQ(FirstViolation("[" + Repeated("1,\n", 20'000) + "1]"),
            "f:20000:1: error: more than 20000 values; shorten the file [too_large]");
}

TEST(YamlTree, RejectsLargeFiles) {
  EXPECT_EQ(FirstViolation(std::string(kMaxJobSpecBytes + 1, ' ')),
            "f:1:1: error: more than 1048576 bytes; check whether it is the right file [too_large]");
}

TEST(YamlTree, RejectsASecondDocument) {
  EXPECT_EQ(FirstViolation("a: 1\n---\nb: 2\n"),
            "f:2:1: error: a second document starts here; write one spec per file [several_documents]");
  EXPECT_EQ(FirstViolation("---\na: 1\n...\n"), "");
}

TEST(YamlTree, RejectsInvalidUtf8) {
  EXPECT_EQ(FirstViolation("a: \xff"),
            "f:1:4: error: byte 0xff is not UTF-8; save the file as UTF-8 [not_utf8]");
  EXPECT_EQ(FirstViolation("a\n \xC0\xAF"),
            "f:2:2: error: byte 0xc0 is not UTF-8; save the file as UTF-8 [not_utf8]");
  EXPECT_EQ(FirstViolation(absl::string_view("a: \0", 4)),
            "f:1:4: error: control character 0x00; use a text file [control_character]");
  EXPECT_EQ(FirstViolation("name: \xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80"), "");
}

TEST(YamlTree, RejectsTagsAndInvalidKeys) {
  EXPECT_EQ(
      FirstViolation("a: !!str 1"),
      "f:1:4: error: tags (!name) are not allowed; leave it out, or quote a value that begins with ! [tag]");
  EXPECT_EQ(FirstViolation("{[1]: 2}"),
            "f:1:2: error: a field's name is a list; write a plain name [bad_key]");
  EXPECT_EQ(FirstViolation("{~: 2}"), "f:1:2: error: a field has no name; write name: value [bad_key]");
}

TEST(YamlTree, ReportsPositionOfSyntaxErrors) {
  EXPECT_EQ(FirstViolation("a: [1, 2\nb: 3\n").substr(0, 4), "f:2:");
}

TEST(YamlTree, RejectsAnUnclosedQuote) {
  EXPECT_EQ(FirstViolation("a: 'it''s open\n"), "f:1:4: error: unterminated quote [syntax]");
  EXPECT_EQ(FirstViolation("{\"a\": [\"x\", \"open\\\"]}"),
            "f:1:22: error: unexpected end of file: 2 brackets are still open; check whether the file is "
            "truncated [syntax]");
  EXPECT_EQ(FirstViolation("a: 'it''s'\nb: \"\\\"\" # it's\n"), "");
}

}  // namespace
}  // namespace fsdpd
