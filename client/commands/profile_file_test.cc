#include "client/commands/profile_file.h"

#include <gtest/gtest.h>

#include <fstream>

#include "base/temp_dir.h"

namespace fsdpd {
namespace {

std::string Told(const LocatedViolations& violations) {
  std::string text;
  for (const LocatedViolation& located : violations) text += Render(located) + "\n";
  return text;
}

TEST(ProfileFile, LoadsShippedProfile) {
  const absl::StatusOr<ProfileText> text = LoadProfile("h200");
  ASSERT_TRUE(text.ok());
  EXPECT_EQ(text->profile.name, "h200");
}

TEST(ProfileFile, UnknownProfileListsNames) {
  const absl::StatusOr<ProfileText> text = LoadProfile("h20O");
  EXPECT_EQ(
      text.status().message(),
      "--profile: not a built-in profile, and the file cannot be read: h20O: No such file or directory; did "
      "you mean h200? the built-in profiles are cpu, h100, h200");
}

TEST(ProfileFile, InheritsFromBase) {
  TempDir dir;
  const std::string path = dir.File("mine.json");
  std::ofstream(path) << R"({"base": "h200", "name": "mine", "memory_bytes": 1e9})";
  const absl::StatusOr<ProfileText> text = LoadProfile(path);
  ASSERT_TRUE(text.ok());
  EXPECT_EQ(Told(text->violations), "");
  EXPECT_EQ(text->profile.name, "mine");
  EXPECT_EQ(text->profile.memory_bytes, 1e9);
  EXPECT_EQ(text->profile.half_matmul_flops, FindProfile("h200")->half_matmul_flops);
}

TEST(ProfileFile, RoundTripsExactly) {
  for (const std::string& name : ProfileNames()) {
    DeviceProfile profile = *FindProfile(name);
    profile.name += " of \"mine\"";
    profile.memory_bytes = 84825604096;
    profile.compute_slowdown = 1 + 1.0 / 3;
    const ProfileText read = ParseProfile(ToJson(profile), "p");
    EXPECT_EQ(Told(read.violations), "");
    EXPECT_EQ(read.profile.name, name + " of  mine ");
    for (const ProfileField& field : ProfileFields()) {
      EXPECT_EQ(read.profile.*field.value, profile.*field.value) << field.key;
    }
  }
}

TEST(ProfileFile, ReportsAllErrorsWithPositions) {
  EXPECT_EQ(Told(ParseProfile("base: h300\nmemory_byts: 1\ncompute_slowdown: fast\nname: a\nname: b\n", "p")
                     .violations),
            "p:1:7: error: base: unknown profile 'h300'; name one of cpu, h100, h200 [profile_unknown]\n"
            "p:2:1: error: unknown key memory_byts; did you mean memory_bytes? [unknown_field]\n"
            "p:3:19: error: compute_slowdown: is 'fast'; write a number, such as 700e12 [wrong_type]\n"
            "p:5:1: error: name is written twice; keep one [duplicate_field]\n");
  EXPECT_EQ(Told(ParseProfile("base: cpu\ncompute_slowdown: 0.5\n", "p").violations),
            "p:2:19: error: compute_slowdown: is 0.5 and must be at least 1; write a number of at least 1 "
            "[profile_value]\n");
}

TEST(ProfileFile, RequiresAllKeysWithoutBase) {
  const LocatedViolations violations = ParseProfile("name: a\nfp32_matmul_flops: 1\n", "p").violations;
  EXPECT_EQ(violations.size(), 12u) << Told(violations);
  EXPECT_EQ(violations[0].violation.field, "half_matmul_flops");
  EXPECT_EQ(violations[0].violation.reason, "is missing");
}

TEST(ProfileFile, RejectsNonMap) {
  EXPECT_EQ(ParseProfile("[1, 2]", "p").violations.size(), 1u);
  EXPECT_EQ(ParseProfile("", "p").violations.size(), 1u);
  EXPECT_EQ(ParseProfile("a: [", "p").violations.size(), 1u);
}

}  // namespace
}  // namespace fsdpd
