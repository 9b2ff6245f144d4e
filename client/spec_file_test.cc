#include "client/spec_file.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/temp_dir.h"

namespace fsdpd {
namespace {

constexpr char kSpec[] =
    "name: a\nmodel: {hf_config: m/config.json}\ndata:\n  tokens:\n  - path: ../c.txt\n  - path: /abs\n";

void Write(const std::string& path, const std::string& text) { std::ofstream(path) << text; }

TEST(SpecFile, TakesPathsRelativeToItsOwnFolder) {
  TempDir dir;
  std::filesystem::create_directories(dir.File("jobs/m"));
  Write(dir.File("jobs/job.yaml"), kSpec);
  Write(dir.File("jobs/m/config.json"),
        R"({"model_type": "llama", "vocab_size": 8, "hidden_size": 4, "intermediate_size": 4,
            "num_hidden_layers": 3, "num_attention_heads": 2})");
  std::istringstream input;
  const absl::StatusOr<SpecText> spec = LoadSpec(dir.File("jobs/job.yaml"), {}, input);
  ASSERT_TRUE(spec.ok()) << spec.status();
  ASSERT_TRUE(spec->faults.empty()) << Render(spec->faults[0]);
  EXPECT_EQ(spec->spec.model().llama().layers(), 3);
  EXPECT_EQ(spec->spec.data().tokens(0).path(), dir.File("c.txt"));
  EXPECT_EQ(spec->spec.data().tokens(1).path(), "/abs");
}

TEST(SpecFile, NamesAConfigFileThatIsNotThere) {
  TempDir dir;
  Write(dir.File("job.yaml"), kSpec);
  std::istringstream input;
  const absl::StatusOr<SpecText> spec = LoadSpec(dir.File("job.yaml"), {}, input);
  ASSERT_TRUE(spec.ok());
  ASSERT_EQ(spec->faults.size(), 1u);
  EXPECT_EQ(Render(spec->faults[0]),
            dir.File("job.yaml") + ":2:9: error: model.hf_config: " + dir.File("m/config.json") +
                ": No such file or directory; give the path of a config.json on this machine [hf_no_config]");
}

TEST(SpecFile, ReadsStdin) {
  std::istringstream input("name: b\n");
  const absl::StatusOr<SpecText> spec = LoadSpec("-", {"train.steps=3"}, input);
  ASSERT_TRUE(spec.ok());
  EXPECT_EQ(spec->spec.name(), "b");
  EXPECT_EQ(spec->spec.train().steps(), 3);
  EXPECT_FALSE(spec->spec.has_data());
}

TEST(SpecFile, SaysWhichFileCannotBeRead) {
  TempDir dir;
  std::istringstream input;
  EXPECT_EQ(LoadSpec(dir.File("no.yaml"), {}, input).status().message(),
            dir.File("no.yaml") + ": No such file or directory");
  EXPECT_EQ(LoadSpec(dir.path(), {}, input).status().message(), dir.path() + ": is a folder");
}

}  // namespace
}  // namespace fsdpd
