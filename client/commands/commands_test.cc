// Tests of fsdpctl as a whole: exit code, stdout and stderr.
#include <absl/strings/str_cat.h>
#include <gtest/gtest.h>

#include "client/connect/outcome.h"
#include "client/testing/command_case.h"

namespace fsdpd {
namespace {

using CommandsTest = ServedCommandCase;

TEST_F(CommandsTest, HelpListsAllCommands) {
  EXPECT_EQ(Run({"--help"}), 0);
  for (const char* command : {"submit", "validate", "plan", "migrate", "profile-device", "ckpt", "get",
                              "describe", "watch", "logs", "trace", "cancel", "nodes", "version"}) {
    EXPECT_NE(out_.find(absl::StrCat("\n  ", command, " ")), std::string::npos) << command;
  }
}

TEST_F(CommandsTest, AllCommandsHaveExamples) {
  for (const char* command : {"submit", "validate", "plan", "migrate", "profile-device", "ckpt", "get",
                              "describe", "watch", "logs", "cancel", "nodes", "version"}) {
    EXPECT_EQ(Run({command, "--help"}), 0);
    EXPECT_NE(out_.find(absl::StrCat("Examples:\n  fsdpctl ", command)), std::string::npos) << out_;
  }
}

TEST_F(CommandsTest, UsageErrorSuggestsSimilarWord) {
  const std::pair<std::vector<std::string>, std::string> cases[] = {
      {{"sumbit"}, "fsdpctl: unknown command 'sumbit'; did you mean submit? [INVALID_FLAG]\n"},
      {{"events", "--filter=kind = SUCCEEDED"},
       "fsdpctl: unknown flag '--filter=kind = SUCCEEDED'; it was removed after release 0.1: use --state, "
       "--selector or --project, or a condition in -o jsonpath [INVALID_FLAG]\n"},
      {{"jobs"}, "fsdpctl: unknown command 'jobs'; did you mean get? [INVALID_FLAG]\n"},
      {{"get", "--ouput", "json"},
       "fsdpctl: unknown flag '--ouput'; did you mean --output? [INVALID_FLAG]\n"},
      {{"logs", "j", "--rank", "many"},
       "fsdpctl: --rank: 'many' is not an integer from 0 to 2147483647 [INVALID_FLAG]\n"},
      {{"profile-device", "--ranks", "1025"},
       "fsdpctl: --ranks: '1025' is not an integer from 1 to 1024 [INVALID_FLAG]\n"},
      {{"describe"}, "fsdpctl: JOB is required [INVALID_FLAG]\n"},
      {{"nodes", "--server", "here"}, "fsdpctl: --server: 'here' is not HOST:PORT [INVALID_FLAG]\n"},
      {{"nodes", "--server", "a:77777,b:1"},
       "fsdpctl: --server: 'a:77777' is not HOST:PORT, in 'a:77777,b:1' [INVALID_FLAG]\n"},
      {{"nodes", "--server", ",b:1"}, "fsdpctl: --server: '' is not HOST:PORT, in ',b:1' [INVALID_FLAG]\n"},
      {{"nodes", "--server", "a;b:1"}, "fsdpctl: --server: 'a;b:1' is not HOST:PORT [INVALID_FLAG]\n"},
      {{"submit", "-f", ""}, "fsdpctl: --file: is empty; add a value [INVALID_FLAG]\n"},
      {{"submit", "-f", "x", "--from", "a@b"},
       "fsdpctl: --from: 'b' is not a step number from 1; write JOB or JOB@STEP [INVALID_FLAG]\n"},
      {{"plan", "-f", "x", "--trace", ""}, "fsdpctl: --trace: is empty; add a value [INVALID_FLAG]\n"},
      {{"describe", ""}, "fsdpctl: JOB: is empty; add a value [INVALID_FLAG]\n"},
      {{"--version"}, "fsdpctl: unknown flag '--version'; did you mean version? [INVALID_FLAG]\n"},
      {{"help"}, "fsdpctl: unknown command 'help'; did you mean --help? [INVALID_FLAG]\n"},
      {{"validate", "job.yaml"},
       "fsdpctl: unknown argument 'job.yaml'; did you mean -f job.yaml? [INVALID_FLAG]\n"},
      {{"get\x1b[31m"}, "fsdpctl: unknown command 'get\\x1b[31m'"},
      {{"nodes", "--server", "http://a:1"}, "fsdpctl: --server: 'http://a:1' is a URL; write only HOST:PORT"},
      {{"nodes", "--timeout", "0"},
       "fsdpctl: --timeout: '0' is not a number of seconds above 0 and at most 86400 (1 day) "
       "[INVALID_FLAG]\n"},
      {{"nodes", "--timeout", "86401"},
       "fsdpctl: --timeout: '86401' is not a number of seconds above 0 and at most 86400 (1 day) "
       "[INVALID_FLAG]\n"},
  };
  for (const auto& [arguments, message] : cases) {
    EXPECT_EQ(Run(arguments), kExitUsage);
    EXPECT_EQ(err_.substr(0, message.size()), message);
    EXPECT_EQ(out_, "");
  }
}

// Regression: the error was about `export` and `validate`, which are commands too.
TEST_F(CommandsTest, MissingPluginNamesItsInstallation) {
  EXPECT_EQ(RunCommand({"model", "export", "--hf", "gemma"}), kExitUsage);
  EXPECT_EQ(
      err_.find("fsdpctl: unknown command 'model'; it is a plugin that is not installed (export PyTorch "
                "models: pip install "),
      0u)
      << err_;
  EXPECT_EQ(RunCommand({"data", "validate", "a.u16"}), kExitUsage);
  EXPECT_EQ(err_.find("fsdpctl: unknown command 'data'; it is a plugin that is not installed"), 0u) << err_;
}

// Regression: exit code 1 had four meanings in addition to a failed job.
TEST_F(CommandsTest, OtherErrorsExitWith7) {
  server_.on_cancel = [](const auto&, auto*) {
    return RefusalWithDetails(grpc::StatusCode::ALREADY_EXISTS, "is \x1b[31mtaken", "REQUEST_ID_TAKEN");
  };
  EXPECT_EQ(Run({"cancel", "j"}), kExitFailed);
  EXPECT_EQ(err_, "fsdpctl: is \\x1b[31mtaken [REQUEST_ID_TAKEN]\n")
      << "control characters of an error are escaped";
}

TEST_F(CommandsTest, UnknownJobExitsWith4) {
  const auto no_job = [](const auto&, auto*) {
    return RefusalWithDetails(grpc::StatusCode::NOT_FOUND, "no job 'x'", "JOB_NOT_FOUND");
  };
  server_.on_get = no_job;
  server_.on_cancel = no_job;
  for (const char* command : {"get", "describe", "logs", "cancel"}) {
    EXPECT_EQ(Run({command, "x"}), kExitNotFound);
    EXPECT_EQ(err_, "fsdpctl: no job 'x'; `fsdpctl get` lists the jobs [JOB_NOT_FOUND]\n");
  }
}

TEST_F(CommandsTest, UnreachableServerExitsWith5AndHint) {
  server_.Stop();
  EXPECT_EQ(Run({"get"}), kExitUnavailable);
  EXPECT_EQ(err_,
            absl::StrCat("fsdpctl: cannot reach the coordinator at ", server_.address(),
                         ": Connection refused; is it running? start one with fsdpd-coordinator, or set "
                         "--server/FSDPD_SERVER [COORDINATOR_UNREACHABLE]\n"));
}

TEST_F(CommandsTest, MissingResponseExitsWith6) {
  Interrupt release;
  server_.on_nodes = [&](const auto&, auto*) {
    release.WaitFor(std::chrono::hours(1));
    return grpc::Status::OK;
  };
  EXPECT_EQ(Run({"nodes", "--timeout", "0.3"}), kExitTimeout);
  release.Fire();
  server_.Stop();  // Before `release` is destroyed.
}

}  // namespace
}  // namespace fsdpd
