#include "client/flags/completion.h"

#include <gtest/gtest.h>

#include <CLI/CLI.hpp>

#include "client/flags/parse_command_line.h"

namespace fsdpd {
namespace {

using Strings = std::vector<std::string>;

Strings Of(const Strings& words) {
  CommandLine line;
  CLI::App app;
  BuildApp(&app, &line);
  return Candidates(app, words, [](NameKind kind, const std::string& command) -> Strings {
    if (kind == NameKind::kContexts) return {"lab", "here"};
    if (kind == NameKind::kPlugins) return {"data"};
    return kind == NameKind::kNodes ? Strings{"node-0", "node-1"} : Strings{"tiny-1", "tiny-2", command};
  });
}

TEST(Completion, CompletesCommandsAndFlags) {
  EXPECT_EQ(Of({"expl"}), Strings({"explain"}));
  EXPECT_EQ(Of({"ckpt", "ver"}), Strings({"verify"}));
  EXPECT_EQ(Of({"get", "--sort"}), Strings({"--sort-by"}));
  EXPECT_EQ(Of({"get", "--timeo"}), Strings({"--timeout"})) << "global flags too";
  EXPECT_EQ(Of({"--timeout", "9", "unco"}), Strings({"uncordon"})) << "the value of a flag is not a command";
}

TEST(Completion, CompletesNames) {
  EXPECT_EQ(Of({"cancel", ""}), Strings({"tiny-1", "tiny-2", "cancel"}));
  EXPECT_EQ(Of({"delete", "tiny-1", "tiny-"}), Strings({"tiny-1", "tiny-2"}));
  EXPECT_EQ(Of({"cordon", ""}), Strings({"node-0", "node-1"}));
  EXPECT_EQ(Of({"describe", "no"}), Strings({"node"}));
  EXPECT_EQ(Of({"describe", "node", "node-1"}), Strings({"node-1"}));
  EXPECT_EQ(Of({"describe", "tiny-1", ""}), Strings());
  EXPECT_EQ(Of({"--context", ""}), Strings({"lab", "here"}));
  EXPECT_EQ(Of({"context", "use", "l"}), Strings({"lab"}));
}

TEST(Completion, CompletesFlagByType) {
  EXPECT_EQ(Of({"events", "--job", "t"}), Strings({"tiny-1", "tiny-2"}));
  EXPECT_EQ(Of({"events", "--node", ""}), Strings({"node-0", "node-1"}));
  EXPECT_EQ(Of({"events", "--after", ""}), Strings()) << "a sequence number, not a job";
  EXPECT_EQ(Of({"submit", "--after", "t"}), Strings({"tiny-1", "tiny-2"}));
  EXPECT_EQ(Of({"submit", "--from", "t"}), Strings({"tiny-1", "tiny-2"}));
}

TEST(Completion, CompletesFlagValues) {
  EXPECT_EQ(Of({"get", "-o", "j"}), Strings({"json", "jsonpath="}));
  EXPECT_EQ(Of({"get", "--output=y"}), Strings({"--output=yaml"}));
  EXPECT_EQ(Of({"get", "--state", "r"}), Strings({"running"}));
  EXPECT_EQ(Of({"wait", "tiny-1", "--for", "state=r"}), Strings({"state=running"}));
}

TEST(Completion, CompletesPlugins) {
  EXPECT_EQ(Of({"dat"}), Strings({"data"}));
  EXPECT_EQ(Of({"data", "inspect", ""}), Strings({kCompletePaths}));
  EXPECT_EQ(Of({"data", "tokenize", "--out", "x"}), Strings({kCompletePaths}));
  EXPECT_EQ(Of({"ckpt", "dat"}), Strings()) << "subcommands are not plugins";
}

TEST(Completion, LeavesPathsToShell) {
  EXPECT_EQ(Of({"submit", "-f", "x"}), Strings({kCompletePaths}));
  EXPECT_EQ(Of({"ckpt", "verify", ""}), Strings({kCompletePaths}));
  EXPECT_EQ(Of({"diff", "a"}), Strings({kCompletePaths}));
}

}  // namespace
}  // namespace fsdpd
