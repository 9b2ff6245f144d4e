#include "client/flags/plugin_verbs.h"

#include <absl/strings/str_cat.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "base/temp_dir.h"

namespace fsdpd {
namespace {

class PluginVerbsTest : public testing::Test {
 protected:
  std::string Directory(const std::string& name) {
    std::filesystem::create_directory(dir_.File(name));
    return dir_.File(name);
  }
  std::string Program(const std::string& directory, const std::string& name, mode_t mode = 0755) {
    const std::string path = absl::StrCat(directory, "/", name);
    std::ofstream(path) << "#!/bin/sh\n";
    chmod(path.c_str(), mode);
    return path;
  }

  TempDir dir_;
};

TEST_F(PluginVerbsTest, UsesFirstProgramInPath) {
  const std::string first = Directory("first"), second = Directory("second");
  Program(second, "fsdpctl-data");
  const std::string path = absl::StrCat("/nowhere-at-all::", first, ":", second);
  EXPECT_EQ(PluginProgram("data", path), second + "/fsdpctl-data");
  Program(first, "fsdpctl-data");
  EXPECT_EQ(PluginProgram("data", path), first + "/fsdpctl-data");
  ASSERT_EQ(PluginVerbs({}, path).size(), 1u);
  EXPECT_EQ(PluginVerbs({}, path)[0].program, first + "/fsdpctl-data");
}

TEST_F(PluginVerbsTest, IgnoresNonExecutableFiles) {
  const std::string directory = Directory("bin");
  std::filesystem::create_directory(directory + "/fsdpctl-directory");
  Program(directory, "fsdpctl-text", 0644);
  Program(directory, "fsdpctl-");
  Program(directory, "fsdpctl-Upper");
  Program(directory, "fsdpctl");
  EXPECT_TRUE(PluginVerbs({}, directory).empty());
  for (const char* name : {"directory", "text", "", "Upper"})
    EXPECT_EQ(PluginProgram(name, directory), "") << name;
}

TEST_F(PluginVerbsTest, RejectsNameWithPath) {
  const std::string directory = Directory("bin");
  Directory("bin/fsdpctl-x");
  Program(directory, "evil");
  EXPECT_EQ(PluginProgram("x/../evil", directory), "");
}

TEST_F(PluginVerbsTest, SkipsRelativeDirectories) {
  const std::string directory = Directory("bin");
  Program(directory, "fsdpctl-data");
  const std::string relative = std::filesystem::relative(directory).string();
  ASSERT_TRUE(std::filesystem::exists(relative + "/fsdpctl-data"));
  EXPECT_EQ(PluginProgram("data", relative), "");
  EXPECT_TRUE(PluginVerbs({}, relative).empty());
}

TEST_F(PluginVerbsTest, OmitsBuiltInCommands) {
  const std::string directory = Directory("bin");
  for (const char* name : {"fsdpctl-get", "fsdpctl-b", "fsdpctl-a"}) Program(directory, name);
  const std::vector<PluginVerb> verbs = PluginVerbs({"get", "submit"}, directory);
  ASSERT_EQ(verbs.size(), 2u);
  EXPECT_EQ(verbs[0].name, "a");
  EXPECT_EQ(verbs[1].name, "b");
}

TEST_F(PluginVerbsTest, HelpListsInstalledAndMissingPlugins) {
  const std::string none = PluginHelp({});
  EXPECT_NE(none.find("not installed"), std::string::npos) << none;
  EXPECT_NE(none.find("clients/python[data]"), std::string::npos) << none;
  EXPECT_NE(none.find("clients/python[model]"), std::string::npos) << none;
  const std::string there = PluginHelp(
      {{"data", "/bin/fsdpctl-data"}, {"model", "/bin/fsdpctl-model"}, {"x", "/bin/fsdpctl-x\x1b[31m"}});
  EXPECT_EQ(there.find("not installed"), std::string::npos) << there;
  EXPECT_NE(there.find("/bin/fsdpctl-data\n"), std::string::npos) << there;
  EXPECT_EQ(there.find('\x1b'), std::string::npos) << there;
  EXPECT_NE(InstallHint("model").find("export PyTorch models"), std::string::npos);
  EXPECT_EQ(InstallHint("sumbit"), "");
}

}  // namespace
}  // namespace fsdpd
