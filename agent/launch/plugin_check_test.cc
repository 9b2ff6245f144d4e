#include "agent/launch/plugin_check.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/temp_dir.h"

namespace fsdpd {
namespace {

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
  const std::string outside = "' is not loaded on this node: it is outside of --plugin-dir ";
  EXPECT_EQ(PluginErrorOf(sibling, allowed_), "model.plugin.path: '" + sibling + outside + allowed_[0].given);
  const std::string out = dir_.File("allowed/out.so");
  std::filesystem::create_symlink(sibling, out);
  EXPECT_EQ(PluginErrorOf(out, allowed_), "model.plugin.path: '" + out + outside + allowed_[0].given);
}

TEST_F(PluginCheckTest, RejectsAllWithoutPluginDirs) {
  const std::string path = dir_.File("allowed/mine.so");
  EXPECT_EQ(PluginErrorOf(path, {}),
            "model.plugin.path: '" + path + "' is not loaded on this node: its agent has no --plugin-dir");
}

TEST_F(PluginCheckTest, ChecksPackagesToo) {
  v1::Model model;
  EXPECT_TRUE(CheckPlugin(model, {}).ok()) << "a preset";
  const std::string path = dir_.File("allowed/mine.so");
  model.mutable_package()->set_path(path);
  EXPECT_TRUE(CheckPlugin(model, allowed_).ok());
  EXPECT_EQ(CheckPlugin(model, {}).message(),
            "model.package.path: '" + path + "' is not loaded on this node: its agent has no --plugin-dir");
}

TEST_F(PluginCheckTest, ReportsMissingFile) {
  const std::string absent = dir_.File("allowed/absent.so");
  const std::string no_file = "' cannot be loaded on this node: No such file or directory";
  EXPECT_EQ(PluginErrorOf(absent, allowed_), "model.plugin.path: '" + absent + no_file);
  const std::string nowhere = dir_.File("allowed/nowhere.so");
  std::filesystem::create_symlink("/nowhere/mine.so", nowhere);
  EXPECT_EQ(PluginErrorOf(nowhere, allowed_), "model.plugin.path: '" + nowhere + no_file);
}

}  // namespace
}  // namespace fsdpd
