#include "agent/plugin_check.h"

#include <absl/strings/match.h>
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
  std::vector<PluginDir> allowed_;
};

TEST_F(PluginCheckTest, TakesWhatLiesInAFolderThatWasNamedAndNothingElse) {
  EXPECT_EQ(WhyNoPlugin(dir_.File("allowed/mine.so"), allowed_), "");
  const std::string beside = dir_.File("allowed-not/mine.so");
  EXPECT_EQ(WhyNoPlugin(beside, allowed_), "model.plugin.path: '" + beside +
                                               "' is not loaded on this node: it lies outside of its agent's "
                                               "--plugin-dir " +
                                               allowed_[0].given);
  EXPECT_EQ(WhyNoPlugin(dir_.path() + "/./allowed//mine.so", allowed_), "");
  EXPECT_NE(WhyNoPlugin(dir_.File("allowed/../allowed-not/mine.so"), allowed_), "");
  EXPECT_NE(WhyNoPlugin(dir_.File("allowed-not/../allowed/mine.so"), allowed_), "");
}

// Who owns the link, or what stands before a "..", could turn it elsewhere before the rank follows it.
TEST_F(PluginCheckTest, APathThatLeadsInFromOutsideIsRefused) {
  std::filesystem::create_symlink(dir_.File("allowed/mine.so"), dir_.File("in.so"));
  EXPECT_NE(WhyNoPlugin(dir_.File("in.so"), allowed_), "");
  std::filesystem::create_directory_symlink(dir_.File("allowed"), dir_.File("link"));
  EXPECT_NE(WhyNoPlugin(dir_.File("link/mine.so"), allowed_), "");
  EXPECT_NE(WhyNoPlugin(dir_.File("link/../allowed/mine.so"), allowed_), "");
  // What does not lie there as it is written is not even looked for: this one is not there.
  EXPECT_TRUE(absl::StrContains(WhyNoPlugin("/nowhere/mine.so", allowed_), "lies outside"));
}

TEST_F(PluginCheckTest, AFolderMayBeNamedByItsLinkOrWhereThatLeads) {
  std::filesystem::create_directory_symlink(dir_.File("allowed"), dir_.File("link"));
  const std::vector<PluginDir> linked = {ResolvePluginDir(dir_.File("link/")).value()};
  EXPECT_EQ(linked[0].given, dir_.File("link"));
  EXPECT_EQ(linked[0].resolved, allowed_[0].resolved);
  EXPECT_EQ(WhyNoPlugin(dir_.File("link/mine.so"), linked), "");
  EXPECT_EQ(WhyNoPlugin(allowed_[0].resolved + "/mine.so", linked), "");
  const PluginDir climbs = ResolvePluginDir(dir_.File("link/../allowed")).value();
  EXPECT_EQ(climbs.given, climbs.resolved);
}

TEST_F(PluginCheckTest, ALinkInTheFolderThatLeadsOutIsRefused) {
  const std::string out = dir_.File("allowed/out.so");
  std::filesystem::create_symlink(dir_.File("allowed-not/mine.so"), out);
  EXPECT_NE(WhyNoPlugin(out, allowed_), "");
}

TEST_F(PluginCheckTest, WithoutAFolderNothingIsLoaded) {
  const std::string path = dir_.File("allowed/mine.so");
  EXPECT_EQ(WhyNoPlugin(path, {}),
            "model.plugin.path: '" + path + "' is not loaded on this node: its agent has no --plugin-dir");
}

TEST_F(PluginCheckTest, SaysThatThereIsNoSuchFileOrFolder) {
  const std::string absent = dir_.File("allowed/absent.so");
  EXPECT_EQ(WhyNoPlugin(absent, allowed_),
            "model.plugin.path: '" + absent + "' cannot be loaded on this node: No such file or directory");
  EXPECT_EQ(std::string(ResolvePluginDir("/nowhere").status().message()),
            "/nowhere: No such file or directory");
  const std::string file = dir_.File("allowed/mine.so");
  EXPECT_EQ(std::string(ResolvePluginDir(file).status().message()), file + " is no folder");
}

}  // namespace
}  // namespace fsdpd
