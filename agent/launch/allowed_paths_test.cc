#include "agent/launch/allowed_paths.h"

#include <gmock/gmock.h>
#include <google/protobuf/descriptor.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "base/temp_dir.h"

namespace fsdpd {
namespace {

using ::testing::ElementsAre;
using ::testing::UnorderedElementsAre;

v1::JobSpec EveryPath() {
  v1::JobSpec spec;
  spec.mutable_data()->add_tokens()->set_path("/data/a.bin");
  v1::TokenFile* pair = spec.mutable_data()->add_tokens();
  pair->set_path("/data/b");
  pair->set_type(v1::TOKEN_TYPE_MEGATRON);
  v1::TokenFile* asked = spec.mutable_data()->add_validation();
  asked->set_path("/data/c.bin");
  asked->set_mask("/data/c.mask");
  spec.mutable_checkpoint()->set_dir("/ckpt/run");
  spec.mutable_checkpoint()->set_load("/ckpt/base");
  spec.mutable_train()->mutable_lora()->set_base_model("/models/llama");
  return spec;
}

TEST(SpecPaths, PathsOfReturnsDataAndCheckpointPaths) {
  std::vector<std::string> paths;
  for (const auto& [field, path] : PathsOf(EveryPath())) paths.push_back(field + " " + path);
  EXPECT_THAT(paths, ElementsAre("data.tokens[0].path /data/a.bin", "data.tokens[1].path /data/b.bin",
                                 "data.tokens[1].path /data/b.idx", "data.validation[0].path /data/c.bin",
                                 "data.validation[0].mask /data/c.mask", "checkpoint.dir /ckpt/run",
                                 "checkpoint.load /ckpt/base", "train.lora.base_model /models/llama"));
  EXPECT_TRUE(PathsOf(v1::JobSpec()).empty());
}

void AddTexts(const google::protobuf::Descriptor* message, std::set<std::string>* texts) {
  for (int i = 0; i < message->field_count(); ++i) {
    const google::protobuf::FieldDescriptor* field = message->field(i);
    if (field->type() == google::protobuf::FieldDescriptor::TYPE_STRING)
      texts->insert(message->name() + "." + field->name());
    if (field->message_type() != nullptr && texts->insert(message->name() + "/" + field->name()).second)
      AddTexts(field->message_type(), texts);
  }
}

// Each new string field of a spec must be listed as a path above or as another text here.
TEST(SpecPaths, PathsOfIgnoresOtherFields) {
  std::set<std::string> texts;
  AddTexts(v1::JobSpec::descriptor(), &texts);
  std::set<std::string> others;
  for (const std::string& text : texts) {
    if (text.find('.') != std::string::npos) others.insert(text);
  }
  for (const char* path :
       {"TokenFile.path", "TokenFile.mask", "Checkpoint.dir", "Checkpoint.load", "Lora.base_model"})
    EXPECT_EQ(others.erase(path), 1u) << path;
  for (const char* path : {"Plugin.path", "Package.path"})
    EXPECT_EQ(others.erase(path), 1u) << "CheckPlugin(): " << path;
  EXPECT_THAT(others, UnorderedElementsAre(
                          "JobSpec.name", "Variable.name", "Variable.value", "Model.preset", "Plugin.args",
                          "Unit.name", "Unit.tied_to", "Param.name", "Package.digest", "Package.target",
                          "Package.torch_version", "Unit.module", "Train.frozen", "Lora.targets",
                          "ParamGroup.params", "Fp8.keep_bf16", "Checkpoint.format", "Checkpoint.export",
                          "Model.hf_config", "Plugin.description", "Resources.node_selector"));
}

class CheckPathsTest : public testing::Test {
 protected:
  CheckPathsTest() {
    for (const char* directory : {"data", "ckpt"}) {
      std::filesystem::create_directory(dir_.File(directory));
      roots_.push_back(ResolvePathRoot(dir_.File(directory)).value());
    }
  }
  absl::Status Check(const std::string& tokens, const std::string& directory) {
    v1::JobSpec spec;
    spec.mutable_data()->add_tokens()->set_path(tokens);
    spec.mutable_checkpoint()->set_dir(directory);
    return CheckPaths(spec, roots_);
  }

  TempDir dir_;
  std::vector<PathRoot> roots_;
};

TEST_F(CheckPathsTest, ErrorNamesFieldPathAndDirectories) {
  EXPECT_TRUE(Check(dir_.File("data/a.bin"), dir_.File("ckpt/run")).ok());
  const absl::Status refused = Check(dir_.File("data/a.bin"), dir_.File("other"));
  EXPECT_TRUE(absl::IsPermissionDenied(refused));
  EXPECT_EQ(refused.message(), "checkpoint.dir: '" + dir_.File("other") +
                                   "' is not opened on this node: it is outside of --path-root " +
                                   dir_.File("data") + ", " + dir_.File("ckpt"));
  EXPECT_TRUE(absl::IsPermissionDenied(Check("/etc/passwd", dir_.File("ckpt/run"))));
}

// Regression: it was reported as outside of the roots.
TEST_F(CheckPathsTest, RejectsDotDot) {
  const std::string path = dir_.File("data") + "/../data/a.bin";
  const absl::Status refused = Check(path, dir_.File("ckpt/run"));
  EXPECT_TRUE(absl::IsPermissionDenied(refused));
  EXPECT_EQ(refused.message(), "data.tokens[0].path: '" + path +
                                   "' is not opened on this node: it contains .., which is not supported "
                                   "with --path-root; write the path without ..");
}

TEST_F(CheckPathsTest, AllowsAllPathsWithoutRoots) {
  roots_.clear();
  EXPECT_TRUE(Check("/etc/passwd", "/nowhere").ok());
}

TEST_F(CheckPathsTest, UnresolvablePathIsUnavailable) {
  std::filesystem::create_symlink("/nowhere", dir_.File("data/a.bin"));
  const absl::Status unknown = Check(dir_.File("data/a.bin"), dir_.File("ckpt/run"));
  EXPECT_TRUE(absl::IsUnavailable(unknown));
  EXPECT_EQ(unknown.message(), "data.tokens[0].path: '" + dir_.File("data/a.bin") +
                                   "' cannot be opened on this node: No such file or directory");
}

class PluginCheckTest : public testing::Test {
 protected:
  PluginCheckTest() {
    for (const char* directory : {"allowed", "allowed-not"})
      std::filesystem::create_directory(dir_.File(directory));
    for (const char* file : {"allowed/mine.so", "allowed-not/mine.so"}) std::ofstream(dir_.File(file)) << "x";
    allowed_ = {ResolvePathRoot(dir_.File("allowed")).value()};
  }
  static std::string PluginErrorOf(const std::string& path, const std::vector<PathRoot>& dirs) {
    v1::Model model;
    model.mutable_plugin()->set_path(path);
    return std::string(CheckPlugin(model, dirs).message());
  }

  TempDir dir_;
  std::vector<PathRoot> allowed_;
};

TEST_F(PluginCheckTest, AcceptsOnlyFilesBelowPluginDirs) {
  EXPECT_EQ(PluginErrorOf(dir_.File("allowed/mine.so"), allowed_), "");
  const std::string sibling = dir_.File("allowed-not/mine.so");
  const std::string outside = "' is not opened on this node: it is outside of --plugin-dir ";
  EXPECT_EQ(PluginErrorOf(sibling, allowed_), "model.plugin.path: '" + sibling + outside + allowed_[0].given);
  const std::string out = dir_.File("allowed/out.so");
  std::filesystem::create_symlink(sibling, out);
  EXPECT_EQ(PluginErrorOf(out, allowed_), "model.plugin.path: '" + out +
                                              "' is not opened on this node: it leads to " + sibling +
                                              ", which is outside of --plugin-dir " + allowed_[0].given);
}

TEST_F(PluginCheckTest, RejectsAllWithoutPluginDirs) {
  const std::string path = dir_.File("allowed/mine.so");
  EXPECT_EQ(PluginErrorOf(path, {}),
            "model.plugin.path: '" + path + "' is not opened on this node: its agent has no --plugin-dir");
}

TEST_F(PluginCheckTest, ChecksPackagesToo) {
  v1::Model model;
  EXPECT_TRUE(CheckPlugin(model, {}).ok()) << "a preset";
  const std::string path = dir_.File("allowed/mine.so");
  model.mutable_package()->set_path(path);
  EXPECT_TRUE(CheckPlugin(model, allowed_).ok());
  EXPECT_EQ(CheckPlugin(model, {}).message(),
            "model.package.path: '" + path + "' is not opened on this node: its agent has no --plugin-dir");
}

TEST_F(PluginCheckTest, ReportsMissingFile) {
  const std::string absent = dir_.File("allowed/absent.so");
  const std::string no_file = "' cannot be opened on this node: No such file or directory";
  EXPECT_EQ(PluginErrorOf(absent, allowed_),
            "model.plugin.path: '" + absent + no_file + "; copy it to this path on every node");
  const std::string nowhere = dir_.File("allowed/nowhere.so");
  std::filesystem::create_symlink("/nowhere/mine.so", nowhere);
  EXPECT_EQ(PluginErrorOf(nowhere, allowed_), "model.plugin.path: '" + nowhere + no_file);
}

}  // namespace
}  // namespace fsdpd
