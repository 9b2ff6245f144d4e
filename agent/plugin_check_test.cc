#include "agent/plugin_check.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/temp_dir.h"

namespace fsdpd {
namespace {

class PluginCheckTest : public testing::Test {
 protected:
  PluginCheckTest() {
    for (const char* folder : {"allowed", "allowed-not"})
      std::filesystem::create_directory(dir_.File(folder));
    for (const char* file : {"allowed/mine.so", "allowed-not/mine.so"}) std::ofstream(dir_.File(file)) << "x";
    allowed_ = {ResolvePluginDir(dir_.File("allowed")).value()};
  }
  TempDir dir_;
  std::vector<std::string> allowed_;
};

TEST_F(PluginCheckTest, TakesWhatLiesInAFolderThatWasNamedAndNothingElse) {
  EXPECT_EQ(WhyNoPlugin(dir_.File("allowed/mine.so"), allowed_), "");
  const std::string beside = dir_.File("allowed-not/mine.so");
  EXPECT_EQ(WhyNoPlugin(beside, allowed_), "model.plugin.path: '" + beside +
                                               "' is not loaded on this node: it lies outside of its agent's "
                                               "--plugin-dir " +
                                               allowed_[0]);
  const std::string around = dir_.File("allowed/../allowed-not/mine.so");
  EXPECT_NE(WhyNoPlugin(around, allowed_), "");
}

TEST_F(PluginCheckTest, ALinkCountsAsWhatItLeadsTo) {
  const std::string out = dir_.File("allowed/out.so"), in = dir_.File("in.so");
  std::filesystem::create_symlink(dir_.File("allowed-not/mine.so"), out);
  std::filesystem::create_symlink(dir_.File("allowed/mine.so"), in);
  EXPECT_NE(WhyNoPlugin(out, allowed_), "");
  EXPECT_EQ(WhyNoPlugin(in, allowed_), "");
  std::filesystem::create_directory_symlink(dir_.File("allowed"), dir_.File("link"));
  EXPECT_EQ(ResolvePluginDir(dir_.File("link")).value(), allowed_[0]);
}

TEST_F(PluginCheckTest, WithoutAFolderNothingIsLoaded) {
  const std::string path = dir_.File("allowed/mine.so");
  EXPECT_EQ(WhyNoPlugin(path, {}),
            "model.plugin.path: '" + path + "' is not loaded on this node: its agent has no --plugin-dir");
}

TEST_F(PluginCheckTest, SaysThatThereIsNoSuchFileOrFolder) {
  EXPECT_EQ(WhyNoPlugin("/nowhere/mine.so", allowed_),
            "model.plugin.path: '/nowhere/mine.so' cannot be loaded on this node: No such file or directory");
  EXPECT_EQ(std::string(ResolvePluginDir("/nowhere").status().message()),
            "/nowhere: No such file or directory");
  const std::string file = dir_.File("allowed/mine.so");
  EXPECT_EQ(std::string(ResolvePluginDir(file).status().message()), file + " is no folder");
}

}  // namespace
}  // namespace fsdpd
