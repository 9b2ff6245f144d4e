// Tests of context, and of the contexts file: exit code, stdout and stderr.
#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "client/commands/contexts.h"
#include "client/connect/outcome.h"
#include "client/flags/parse_command_line.h"
#include "client/testing/listed_jobs_case.h"

namespace fsdpd {
namespace {

// Sets an environment variable during its lifetime.
class Variables {
 public:
  explicit Variables(const std::vector<std::pair<const char*, const char*>>& all) {
    for (const auto& [name, value] : all) {
      setenv(name, value, 1);
      names_.push_back(name);
    }
  }
  ~Variables() {
    for (const char* name : names_) unsetenv(name);
  }

 private:
  std::vector<const char*> names_;
};

class ContextCommandTest : public ListedJobsCase {
 protected:
  std::string ReadConfig() {
    std::ostringstream text;
    text << std::ifstream(config_).rdbuf();
    return text.str();
  }

  std::istringstream in_;
  std::ostringstream printed_;
};

TEST_F(ContextCommandTest, ContextSelectsServer) {
  Write("contexts.yaml", absl::StrCat("# mine\ncontexts:\n  lab: {server: '", server_.address(),
                                      "'}\n  far: {server: 'far.example:7777', token_file: t}\n"));
  EXPECT_EQ(RunCommand({"--context", "lab", "get", "-o", "name"}), kExitOk) << err_;
  EXPECT_EQ(RunCommand({"context", "show"}), kExitUsage);
  EXPECT_EQ(RunCommand({"context", "use", "lab"}), kExitOk) << err_;
  EXPECT_EQ(ReadConfig().find("current: lab\n# mine\ncontexts:"), 0u) << ReadConfig();
  EXPECT_EQ(RunCommand({"get", "-o", "name"}), kExitOk) << "the current one: " << err_;
  EXPECT_EQ(RunCommand({"context", "use", "far"}), kExitOk) << err_;
  EXPECT_EQ(ReadConfig().find("current: far\n# mine\n"), 0u) << ReadConfig();
  EXPECT_EQ(Run({"get", "-o", "name"}), kExitOk) << "--server counts before it: " << err_;
  EXPECT_EQ(RunCommand({"context", "list"}), kExitOk);
  EXPECT_TRUE(absl::StrContains(out_, "*        far")) << out_;
  EXPECT_TRUE(absl::StrContains(out_, dir_.File("t"))) << "relative to the file's directory: " << out_;
  EXPECT_EQ(RunCommand({"--context", "lba", "get"}), kExitUsage);
  EXPECT_NE(err_.find("did you mean lab?"), std::string::npos) << err_;
}

TEST_F(ContextCommandTest, FlagsOverrideVariablesAndTokenStaysWithItsServer) {
  Write("contexts.yaml", "contexts:\n  lab: {server: 'lab.example:7777', token_file: lab.token}\n");
  Variables variables({{"FSDPD_SERVER", "other.example:7777"},
                       {"FSDPD_TOKEN", "others"},
                       {"FSDPD_COORDINATOR_CA", "other.crt"}});
  CommandLine line;
  Console console{in_, printed_, printed_};
  const auto take = [&](const std::vector<std::string>& arguments) {
    line = {};
    EXPECT_EQ(ParseCommandLine(arguments, &line, &console), std::nullopt);
    return ApplyContext(&line);
  };
  EXPECT_TRUE(take({"get", "--context=lab"}).ok());
  EXPECT_EQ(line.server, "lab.example:7777");
  EXPECT_EQ(line.token_file, dir_.File("lab.token"));
  EXPECT_EQ(line.coordinator_ca, "");
  EXPECT_FALSE(line.takes_token_variable);
  EXPECT_FALSE(take({"--server", "here:1", "get", "--context", "lab"}).ok());
  EXPECT_TRUE(take({"get"}).ok());
  EXPECT_EQ(line.server, "other.example:7777");
  EXPECT_EQ(line.token_file, "");
  const std::vector<std::pair<const char*, const char*>> context = {{"FSDPD_CONTEXT", "lab"}};
  const Variables both(context);
  EXPECT_FALSE(take({"get"}).ok());
  EXPECT_TRUE(take({"--server", "here:1", "get"}).ok());
  EXPECT_EQ(line.server, "here:1");
  EXPECT_EQ(line.token_file, "");
}

TEST_F(ContextCommandTest, MissingCurrentContextIsReported) {
  Write("contexts.yaml",
        absl::StrCat("current: gone\ncontexts:\n  lab: {server: '", server_.address(), "'}\n"));
  EXPECT_EQ(RunCommand({"get"}), kExitUsage);
  EXPECT_NE(err_.find("current context: unknown context 'gone'"), std::string::npos) << err_;
  EXPECT_EQ(RunCommand({"--context", "lab", "get", "-o", "name"}), kExitOk) << err_;
  EXPECT_EQ(RunCommand({"context", "list"}), kExitOk);
  EXPECT_NE(err_.find("the current context, gone, does not exist"), std::string::npos) << err_;
  EXPECT_EQ(RunCommand({"context", "use", "lab"}), kExitOk) << err_;
  EXPECT_EQ(RunCommand({"get", "-o", "name"}), kExitOk) << err_;
}

TEST_F(ContextCommandTest, ContextUsePreservesLinkAndText) {
  const std::string real =
      Write("dotfiles.yaml", "# mine\n---\ncontexts:\n  lab: {server: 'lab.example:7777'}\n");
  std::filesystem::permissions(real,
                               std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
  std::filesystem::create_symlink("dotfiles.yaml", config_);
  EXPECT_EQ(RunCommand({"context", "use", "lab"}), kExitOk) << err_;
  EXPECT_TRUE(std::filesystem::is_symlink(config_));
  EXPECT_EQ(ReadConfig(), "# mine\n---\ncurrent: lab\ncontexts:\n  lab: {server: 'lab.example:7777'}\n");
  EXPECT_EQ(std::filesystem::status(real).permissions(),
            std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
  const std::filesystem::directory_iterator left(std::filesystem::path(real).parent_path());
  EXPECT_EQ(std::distance(begin(left), end(left)), 2) << "only the file and the link remain";
  Write("dotfiles.yaml", "{contexts: {lab: {server: 'lab.example:7777'}}}\n");
  EXPECT_EQ(RunCommand({"context", "use", "lab"}), kExitUsage);
  EXPECT_NE(err_.find("add 'current: lab' yourself"), std::string::npos) << err_;
  EXPECT_EQ(ReadConfig(), "{contexts: {lab: {server: 'lab.example:7777'}}}\n");
}

TEST_F(ContextCommandTest, LocatesErrorInContextsFile) {
  Write("contexts.yaml", "contexts:\n  lab: {sever: here:1}\n");
  EXPECT_EQ(RunCommand({"get"}), kExitUsage);
  EXPECT_NE(err_.find("contexts.yaml:2:9: unknown field sever; did you mean server?"), std::string::npos)
      << err_;
  EXPECT_EQ(RunCommand({"explain"}), kExitOk) << "offline commands do not read it";
  Write("contexts.yaml", "contexts:\n  lab: {server: 'a:1'}\n  lab: {server: 'b:1'}\n");
  EXPECT_EQ(RunCommand({"get"}), kExitUsage);
  EXPECT_NE(err_.find("contexts.yaml:3:3: error: contexts.lab is written twice; keep one"), std::string::npos)
      << err_;
  const auto expect_error = [&](const std::string& text) {
    for (const std::vector<std::string>& command :
         std::vector<std::vector<std::string>>{{"get"}, {"context", "list"}, {"context", "use", "zz"}}) {
      EXPECT_EQ(RunCommand(command), kExitUsage) << text;
      EXPECT_NE(err_.find(text), std::string::npos) << err_;
      EXPECT_NE(err_.find(" [INVALID_CONTEXT]\n"), std::string::npos) << err_;
    }
  };
  Write("contexts.yaml", "contexts: [\n");
  expect_error("contexts.yaml:");
  std::filesystem::remove(config_);
  std::filesystem::create_directory(config_);
  expect_error("contexts.yaml: Is a directory");
}

}  // namespace
}  // namespace fsdpd
