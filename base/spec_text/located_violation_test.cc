#include "base/spec_text/located_violation.h"

#include <gtest/gtest.h>

namespace fsdpd {
namespace {

TEST(LocatedViolation, PointsAtTheField) {
  const FieldPlaces places = {
      {"", {"job.yaml", 1, 1}}, {"train", {"job.yaml", 2, 1}}, {"train.steps", {"job.yaml", 3, 3}}};
  EXPECT_EQ(Render(Locate(
                {"steps_positive", ViolationLevel::kError, "train.steps", "is 0", "write at least 1", "", ""},
                places)),
            "job.yaml:3:3: error: train.steps: is 0; write at least 1 [steps_positive]");
}

TEST(LocatedViolation, PointsAtTheNearestWrittenParent) {
  const FieldPlaces places = {{"", {"j", 1, 1}}, {"data", {"j", 2, 1}}, {"data.tokens", {"j", 3, 1}}};
  EXPECT_EQ(Locate({"", ViolationLevel::kError, "data.tokens[1].path", "", "", "", ""}, places).place.line,
            3);
  EXPECT_EQ(Locate({"", ViolationLevel::kError, "data.sequence_length", "", "", "", ""}, places).place.line,
            2);
  EXPECT_EQ(Locate({"", ViolationLevel::kError, "train", "", "", "", ""}, places).place.line, 1);
}

TEST(LocatedViolation, RendersAdjustments) {
  EXPECT_EQ(
      Render({{}, {"r", ViolationLevel::kAdjust, "fsdp.prefetch_bytes", "is too small", "", "1", "4096"}}),
      "adjusted: fsdp.prefetch_bytes: is too small (1 -> 4096) [r]");
}

TEST(LocatedViolation, DoesNotRepeatTheField) {
  EXPECT_EQ(Render({{"j", 1, 2},
                    {"unknown_field", ViolationLevel::kError, "fsdp.x", "unknown field fsdp.x", "", "", ""}}),
            "j:1:2: error: unknown field fsdp.x [unknown_field]");
}

TEST(LocatedViolation, EscapesControlCharacters) {
  LocatedViolation located;
  located.violation.reason = "'a\x1b[2J\nb\x7f\xc2\x9b' is no name, \xc3\xa4 is fine";
  EXPECT_EQ(Render(located), "error: 'a\\x1b[2J\\nb\\x7f\\u009b' is no name, \xc3\xa4 is fine");
}

// Regression: a name of 5000 letters filled the screen.
TEST(LocatedViolation, TruncatesLongWords) {
  const auto render = [](const std::string& reason) {
    return Render({{"f", 1, 1}, {"r", ViolationLevel::kError, "name", reason, "fix it", "", ""}});
  };
  const std::string text = render("'" + std::string(5000, 'x') + "' is too long");
  EXPECT_LT(text.size(), 200u) << text;
  EXPECT_NE(text.find("xxx... (5002 bytes) is too long; fix it [r]"), std::string::npos) << text;
  std::string umlauts = "a";
  for (int i = 0; i < 1000; ++i) umlauts += "\xc3\xbc";
  EXPECT_NE(render(umlauts).find("\xc3\xbc... (2002 bytes)"), std::string::npos) << render(umlauts);
  const std::string path = "/" + std::string(280, 'p');
  EXPECT_NE(render(path + " is not there").find(path + " is not there"), std::string::npos);
}

}  // namespace
}  // namespace fsdpd
