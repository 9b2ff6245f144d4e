#include "client/spec/spec_file.h"

#include <absl/strings/str_cat.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/spec_text/renamed_fields.h"
#include "base/temp_dir.h"
#include "fsdp/package/testing/package_writer.h"
#include "fsdp/plan/rules/rules.h"
#include "fsdp/plan/spec/testing/small_package.h"

namespace fsdpd {
namespace {

constexpr char kSpec[] =
    "name: a\nmodel: {hf_config: m/config.json}\ndata:\n  tokens:\n  - path: ./c.txt\n  - path: /abs\n";

void Write(const std::string& path, const std::string& text) { std::ofstream(path) << text; }

TEST(SpecFile, ResolvesPathsAgainstSpecDirectory) {
  TempDir dir;
  std::filesystem::create_directories(dir.File("jobs/m"));
  Write(dir.File("jobs/job.yaml"), kSpec);
  Write(dir.File("jobs/c.txt"), "text");
  Write(dir.File("jobs/m/config.json"),
        R"({"model_type": "llama", "vocab_size": 8, "hidden_size": 4, "intermediate_size": 4,
            "num_hidden_layers": 3, "num_attention_heads": 2})");
  std::istringstream input;
  const absl::StatusOr<SpecText> spec = LoadSpec(dir.File("jobs/job.yaml"), {}, input);
  ASSERT_TRUE(spec.ok()) << spec.status();
  ASSERT_TRUE(spec->violations.empty()) << Render(spec->violations[0]);
  EXPECT_EQ(spec->spec.model().llama().layers(), 3);
  EXPECT_EQ(spec->spec.data().tokens(0).path(), dir.File("jobs/c.txt"));
  EXPECT_EQ(spec->spec.data().tokens(1).path(), "/abs");
  EXPECT_FALSE(spec->spec.has_checkpoint());
}

TEST(SpecFile, ResolvesCheckpointDirectories) {
  TempDir dir;
  std::filesystem::create_directories(dir.File("jobs"));
  Write(dir.File("jobs/job.yaml"), "name: a\ncheckpoint: {dir: runs/7/, load: old/iter_0000200/}\n");
  std::istringstream input;
  absl::StatusOr<SpecText> spec = LoadSpec(dir.File("jobs/job.yaml"), {}, input);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->spec.checkpoint().dir(), dir.File("jobs/runs/7"));
  EXPECT_EQ(spec->spec.checkpoint().load(), dir.File("jobs/old/iter_0000200"));
  spec = LoadSpec(dir.File("jobs/job.yaml"), {"checkpoint.dir=/runs/7", "checkpoint.load="}, input);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->spec.checkpoint().dir(), "/runs/7");
  EXPECT_EQ(spec->spec.checkpoint().load(), "") << "an empty path stays empty";
}

TEST(SpecFile, ResolvesCheckpointDirectoriesAgainstSpecDirectory) {
  TempDir dir;
  Write(dir.File("job.yaml"), "name: a\ncheckpoint: {dir: ./1, every_steps: 5, load: /abs}\n");
  std::istringstream input;
  const absl::StatusOr<SpecText> spec = LoadSpec(dir.File("job.yaml"), {}, input);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->spec.checkpoint().dir(), dir.File("1"));
  EXPECT_EQ(spec->spec.checkpoint().load(), "/abs");
  std::istringstream again;
  const absl::StatusOr<SpecText> none = LoadSpec(dir.File("job.yaml"), {"checkpoint={}"}, again);
  ASSERT_TRUE(none.ok()) << none.status();
  EXPECT_EQ(none->spec.checkpoint().dir(), "") << "an unset path stays empty";
}

TEST(SpecFile, RejectsPathsThatNeedExpansion) {
  TempDir dir;
  Write(dir.File("job.yaml"),
        "name: a\ndata: {tokens: [{path: /t}, {path: ~/t}]}\ncheckpoint: {dir: 's3://b/run'}\n");
  std::istringstream input;
  const absl::StatusOr<SpecText> spec = LoadSpec(dir.File("job.yaml"), {}, input);
  ASSERT_TRUE(spec.ok()) << spec.status();
  ASSERT_EQ(spec->violations.size(), 2u);
  EXPECT_NE(
      Render(spec->violations[0]).find("job.yaml:3:14: error: checkpoint.dir: 's3://b/run' is not a path"),
      std::string::npos)
      << Render(spec->violations[0]);
  EXPECT_NE(
      Render(spec->violations[1]).find("job.yaml:2:30: error: data.tokens[1].path: '~/t' is not a path"),
      std::string::npos)
      << Render(spec->violations[1]);
}

// Regression: the field was ignored, and weights were initialized with 0.02.
TEST(SpecFile, UsesInitializerRangeOfConfig) {
  TempDir dir;
  std::filesystem::create_directory(dir.File("m"));
  Write(dir.File("job.yaml"), "name: a\nmodel: {hf_config: m/config.json}\n");
  const auto load = [&](const std::string& range, const std::vector<std::string>& sets) {
    Write(
        dir.File("m/config.json"),
        R"({"model_type": "gpt2", "vocab_size": 64, "n_embd": 32, "n_layer": 2, "n_head": 2, "attn_pdrop": 0,
"embd_pdrop": 0, "resid_pdrop": 0, "initializer_range": )" +
            range + R"(, "n_positions": 8})");
    std::istringstream input;
    absl::StatusOr<SpecText> spec = LoadSpec(dir.File("job.yaml"), sets, input);
    EXPECT_TRUE(spec.ok()) << spec.status();
    for (const LocatedViolation& fault : spec->violations) ADD_FAILURE() << Render(fault);
    return *std::move(spec);
  };
  const SpecText carried = load("0.041", {});
  EXPECT_EQ(carried.spec.train().initial().std(), 0.041);
  EXPECT_EQ(carried.places.at("train.initial.std").file, dir.File("m/config.json"));
  EXPECT_EQ(carried.places.at("train.initial.std").line, 2);
  EXPECT_EQ(load("0.041", {"train.initial.std=0.03"}).spec.train().initial().std(), 0.03);
  EXPECT_FALSE(load("0.02", {}).spec.train().has_initial());
}

TEST(SpecFile, ReportsMissingConfig) {
  TempDir dir;
  Write(dir.File("job.yaml"), kSpec);
  std::istringstream input;
  const absl::StatusOr<SpecText> spec = LoadSpec(dir.File("job.yaml"), {"data.tokens=[]"}, input);
  ASSERT_TRUE(spec.ok());
  ASSERT_EQ(spec->violations.size(), 1u);
  EXPECT_EQ(Render(spec->violations[0]),
            dir.File("job.yaml") + ":2:9: error: model.hf_config: " + dir.File("m/config.json") +
                ": No such file or directory; give the path of a config.json on this machine [hf_no_config]");
}

constexpr char kPluginSpec[] = "name: a\nmodel:\n  plugin: {path: ./mine.so, description: mine.json}\n";

SpecText LoadWithDescription(const std::string& description, const std::vector<std::string>& sets = {}) {
  static TempDir dir;
  Write(dir.File("job.yaml"), kPluginSpec);
  Write(dir.File("mine.json"), description);
  std::istringstream input;
  absl::StatusOr<SpecText> spec = LoadSpec(dir.File("job.yaml"), sets, input);
  EXPECT_TRUE(spec.ok()) << spec.status();
  for (LocatedViolation& fault : spec->violations) {
    fault.place.file = std::filesystem::path(fault.place.file).filename().string();
  }
  return *std::move(spec);
}

TEST(SpecFile, EmbedsPluginDescription) {
  const SpecText spec = LoadWithDescription(R"({
  "args": "{\"layers\": 2}", "vocab_size": "256",
  "units": [{"name": "in", "params": [{"name": "w", "shape": ["256", "8"], "decay": true}],
             "output_values": "8"}]
})");
  ASSERT_TRUE(spec.violations.empty()) << Render(spec.violations[0]);
  const v1::Plugin& plugin = spec.spec.model().plugin();
  EXPECT_TRUE(std::filesystem::path(plugin.path()).is_absolute());
  EXPECT_EQ(std::filesystem::path(plugin.path()).filename(), "mine.so");
  EXPECT_TRUE(plugin.description().empty());
  EXPECT_EQ(plugin.args(), R"({"layers": 2})");
  ASSERT_EQ(plugin.units_size(), 1);
  EXPECT_EQ(plugin.units(0).params(0).shape(1), 8);
  const Place& place = spec.places.at("model.plugin.units[0].name");
  EXPECT_EQ(std::filesystem::path(place.file).filename(), "mine.json");
  EXPECT_EQ(place.line, 3);
}

// Described by a rank binary of release 0.1.
TEST(SpecFile, ReadsDescriptionWithOldNames) {
  for (const RenamedField& field : RenamedFields()) {
    if (field.message != "Plugin.Unit") continue;
    const SpecText spec = LoadWithDescription(
        absl::StrCat(R"({"vocab_size": "256", "units": [{"name": "in", ")", field.before, "\": \"7\"}]}"));
    ASSERT_TRUE(spec.violations.empty()) << Render(spec.violations[0]);
    const v1::Plugin::Unit& unit = spec.spec.model().plugin().units(0);
    EXPECT_EQ(unit.saved_values() + unit.saved_values_selective() + (unit.tied_to() == "7" ? 7 : 0), 7);
  }
}

TEST(SpecFile, LocatesErrorsInDescription) {
  const auto fault = [](const std::string& description, const std::vector<std::string>& sets = {}) {
    const SpecText spec = LoadWithDescription(description, sets);
    return spec.violations.size() == 1 ? Render(spec.violations[0])
                                       : std::to_string(spec.violations.size()) + " faults";
  };
  EXPECT_EQ(fault("{\n\"vocab\": 3}").substr(0, 54), "mine.json:2:1: error: unknown field model.plugin.vocab")
      << fault("{\n\"vocab\": 3}");
  EXPECT_EQ(fault("{\n\"units\": [\n").substr(0, 10), "mine.json:") << fault("{\n\"units\": [\n");
  EXPECT_EQ(fault("{\"units\": 3}").substr(0, 12), "mine.json:1:") << fault("{\"units\": 3}");
  EXPECT_NE(fault("{\"args\": \"a\"}", {"model.plugin.args=b"}).find("was made with 'a'"), std::string::npos)
      << fault("{\"args\": \"a\"}", {"model.plugin.args=b"});
  EXPECT_NE(fault("{}", {"model.plugin.vocab_size=3"}).find("[plugin_described_twice]"), std::string::npos);
  EXPECT_NE(fault("{}", {"model.plugin.description=no.json"}).find("no.json: No such file or directory"),
            std::string::npos);
}

constexpr char kPackageSpec[] =
    "name: a\nmodel: {package: {path: ./mine.fsdpd}}\ndata: {synthetic: {}}\ntrain: {steps: 3}\n";

SpecText LoadPackageSpec(const std::string& directory, const std::string& text) {
  Write(directory + "/job.yaml", text);
  std::istringstream input;
  absl::StatusOr<SpecText> spec = LoadSpec(directory + "/job.yaml", {}, input);
  EXPECT_TRUE(spec.ok()) << spec.status();
  return *std::move(spec);
}

std::string IdsOf(const LocatedViolations& violations) {
  std::string ids;
  for (const LocatedViolation& each : violations) ids += each.violation.rule + " ";
  return ids;
}

TEST(SpecFile, ReadsPackage) {
  TempDir dir;
  WriteFile(dir.File("mine.fsdpd"), PackageOf(SmallPackage(), {{"a.so", "code"}}));
  const SpecText spec = LoadPackageSpec(dir.path(), kPackageSpec);
  EXPECT_EQ(IdsOf(spec.violations), "");
  v1::Package want = SmallPackage();
  want.set_path(dir.File("mine.fsdpd"));
  want.set_digest(spec.spec.model().package().digest());
  EXPECT_EQ(spec.spec.model().package().DebugString(), want.DebugString());
  EXPECT_EQ(want.digest().size(), 64u);
  EXPECT_TRUE(CheckJob(spec.spec).empty()) << CheckJob(spec.spec)[0].reason;
}

TEST(SpecFile, KeepsFieldsOfPackageThatIsNotHere) {
  TempDir dir;
  const std::string written = R"(name: a
model: {package: {path: /nowhere/mine.fsdpd, digest: abc, vocab_size: 8}}
)";
  const SpecText spec = LoadPackageSpec(dir.path(), written);
  EXPECT_EQ(IdsOf(spec.violations), "");
  EXPECT_EQ(spec.spec.model().package().vocab_size(), 8);
  const SpecText missing = LoadPackageSpec(dir.path(), kPackageSpec);
  EXPECT_EQ(IdsOf(missing.violations), "");
  ASSERT_EQ(CheckJob(missing.spec).size(), 1u) << "the package would set data.sequence_length";
  EXPECT_EQ(CheckJob(missing.spec)[0].rule, "package_unresolved");
}

TEST(SpecFile, RefusesDamagedOrDifferentPackage) {
  TempDir dir;
  WriteFile(dir.File("mine.fsdpd"), "not a zip archive");
  const SpecText damaged = LoadPackageSpec(dir.path(), kPackageSpec);
  ASSERT_EQ(damaged.violations.size(), 1u);
  EXPECT_NE(Render(damaged.violations[0]).find("job.yaml:2:"), std::string::npos);
  EXPECT_NE(Render(damaged.violations[0]).find("mine.fsdpd: is not a package of fsdpctl model export"),
            std::string::npos)
      << Render(damaged.violations[0]);
  EXPECT_TRUE(CheckJob(damaged.spec, damaged.unparsed).empty()) << "consequences";
  WriteFile(dir.File("mine.fsdpd"), PackageOf(SmallPackage(), {}));
  const SpecText other = LoadPackageSpec(
      dir.path(), "name: a\nmodel: {package: {path: ./mine.fsdpd, vocab_size: 7}}\ndata: {synthetic: {}}\n");
  EXPECT_EQ(IdsOf(other.violations), "package_differs ");
}

TEST(SpecFile, ReadsStdin) {
  std::istringstream input("name: b\n");
  const absl::StatusOr<SpecText> spec = LoadSpec("-", {"train.steps=3"}, input);
  ASSERT_TRUE(spec.ok());
  EXPECT_EQ(spec->spec.name(), "b");
  EXPECT_EQ(spec->spec.train().steps(), 3);
  EXPECT_FALSE(spec->spec.has_data());
}

TEST(SpecFile, ReportsUnreadableFile) {
  TempDir dir;
  std::istringstream input;
  EXPECT_EQ(LoadSpec(dir.File("no.yaml"), {}, input).status().message(),
            dir.File("no.yaml") + ": No such file or directory");
  EXPECT_EQ(LoadSpec(dir.path(), {}, input).status().message(), dir.path() + ": is a directory");
}

// Regression: token files were checked only after launch.
TEST(SpecFile, WarnsOfMissingOrEmptyTokenFiles) {
  TempDir dir;
  Write(dir.File("empty"), "");
  Write(dir.File("good"), "text");
  Write(dir.File("half.bin"), "x");
  Write(dir.File("job.yaml"),
        "data:\n  tokens:\n  - path: absent\n  - {path: empty}\n  - path: good\n  - path: .\n"
        "  - {path: half, type: megatron}\n  - path: /no/such/directory/file\n"
        "  validation:\n  - {path: gone, mask: gone.mask}\n");
  std::istringstream input;
  const absl::StatusOr<SpecText> spec = LoadSpec(dir.File("job.yaml"), {}, input);
  ASSERT_TRUE(spec.ok());
  EXPECT_FALSE(HasErrors(spec->violations)) << "the nodes may have different files";
  std::vector<std::string> said;
  for (const LocatedViolation& fault : spec->violations) said.push_back(Render(fault));
  ASSERT_EQ(said.size(), 6u);
  EXPECT_EQ(said[0], dir.File("job.yaml") + ":3:5: warning: data.tokens[0].path: " + dir.File("absent") +
                         " does not exist on this machine, although its directory does; fix it, or ignore "
                         "this if the nodes have a different file there [token_file_here]");
  EXPECT_NE(said[1].find(":4:6: warning: data.tokens[1].path: " + dir.File("empty") + " is empty"),
            std::string::npos)
      << said[1];
  EXPECT_NE(said[2].find("data.tokens[3].path: "), std::string::npos) << said[2];
  EXPECT_NE(said[3].find("half.idx does not exist on this machine"), std::string::npos) << said[3];
  EXPECT_NE(said[4].find(":10:6: warning: data.validation[0].path: "), std::string::npos) << said[4];
  EXPECT_NE(said[5].find("data.validation[0].mask: " + dir.File("gone.mask")), std::string::npos) << said[5];
}

// Regression: one mistake was reported twice, by a warning here and by a validation error.
TEST(SpecFile, LeavesDotDotToValidation) {
  TempDir dir;
  Write(dir.File("job.yaml"), absl::StrCat("data:\n  tokens:\n  - path: ../absent\n  - path: ",
                                           dir.File("x/../gone"), "\n  - {path: good, mask: ../absent}\n"));
  Write(dir.File("good"), "text");
  std::istringstream input;
  const absl::StatusOr<SpecText> spec = LoadSpec(dir.File("job.yaml"), {}, input);
  ASSERT_TRUE(spec.ok());
  EXPECT_TRUE(spec->violations.empty()) << Render(spec->violations[0]);
}

// Regression: it was reported as missing. The test uses a symbolic link to itself, which even root cannot
// resolve.
TEST(SpecFile, UnreadableTokenFileIsNotMissing) {
  TempDir dir;
  std::filesystem::create_symlink("loop", dir.File("loop"));
  Write(dir.File("job.yaml"), "data:\n  tokens:\n  - path: loop\n");
  std::istringstream input;
  const absl::StatusOr<SpecText> spec = LoadSpec(dir.File("job.yaml"), {}, input);
  ASSERT_TRUE(spec.ok());
  ASSERT_EQ(spec->violations.size(), 1u);
  EXPECT_NE(Render(spec->violations[0]).find("loop cannot be read here: Too many levels"), std::string::npos)
      << Render(spec->violations[0]);
}

}  // namespace
}  // namespace fsdpd
