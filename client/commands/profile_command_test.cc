// Tests of profile-device: exit code, stdout and stderr.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "client/connect/outcome.h"
#include "client/testing/command_case.h"
#include "fsdp/plan/predict/device_profile.h"

namespace fsdpd {
namespace {

// A shell script that replaces fsdpd-rank.
class ProfileCommandTest : public SpecCommandCase {
 protected:
  std::vector<std::string> Command(const std::string& script) {
    const std::string path = dir_.File("fsdpd-rank");
    std::ofstream(path) << "#!/bin/sh\n" << script << "\n";
    std::filesystem::permissions(path, std::filesystem::perms::owner_all);
    return {"profile-device", "--rank-binary", path};
  }
};

TEST_F(ProfileCommandTest, PrintsProfileForPlan) {
  const std::string json = ToJson(*FindProfile("h100"));
  std::vector<std::string> command = Command("echo note: $* >&2; cat <<END\n" + json + "END");
  EXPECT_EQ(Run(command), 0) << err_;
  EXPECT_EQ(out_, json);
  EXPECT_EQ(err_, "note: --profile-device cpu\n");
  std::ofstream(dir_.File("my.json")) << out_;
  EXPECT_EQ(Run({"plan", "-f", file_, "--offline", "--profile", dir_.File("my.json")}), 0) << err_;
  EXPECT_NE(out_.find("prediction for h100"), std::string::npos) << out_;

  command.insert(command.end(), {"--device", "cuda", "--ranks", "4", "-o", "yaml"});
  EXPECT_EQ(Run(command), 0) << err_;
  EXPECT_EQ(err_, "note: --profile-device cuda --ranks 4\n");
  EXPECT_EQ(out_.find("\"name\": \"h100\"\n"), 0u) << out_;
  std::ofstream(dir_.File("my.yaml")) << out_;
  EXPECT_EQ(Run({"plan", "-f", file_, "--offline", "--profile", dir_.File("my.yaml")}), 0) << err_;
}

TEST_F(ProfileCommandTest, ReportsErrorOnceWithExitCode) {
  const std::string binary = dir_.File("fsdpd-rank");
  EXPECT_EQ(Run(Command("echo no device >&2; exit 1")), kExitFailed);
  EXPECT_EQ(err_, "no device\nfsdpctl: no profile: " + binary + " exited with code 1 [PROGRAM_FAILED]\n");
  EXPECT_EQ(Run(Command("exit 2")), kExitUsage);
  EXPECT_EQ(Run(Command("kill -KILL $$")), kExitFailed);
  EXPECT_EQ(err_, "fsdpctl: no profile: " + binary + " exited by signal 9 [PROGRAM_FAILED]\n");
  EXPECT_EQ(Run(Command("echo hello")), kExitFailed);
  EXPECT_NE(err_.find("fsdpctl: " + binary + " did not print a valid profile [INVALID_PROFILE]\n"),
            std::string::npos)
      << err_;
  EXPECT_EQ(out_, "");
  EXPECT_EQ(Run({"profile-device", "--rank-binary", "/no/rank"}), kExitUsage);
  EXPECT_EQ(err_,
            "fsdpctl: /no/rank: No such file or directory; set the path of fsdpd-rank with --rank-binary "
            "PATH [PROGRAM_FAILED]\n");
}

TEST_F(ProfileCommandTest, InterruptCancelsMeasurement) {
  interrupt_.Fire();
  EXPECT_EQ(Run(Command("exec sleep 1000")), kExitInterrupted);
  EXPECT_EQ(out_, "");
}

}  // namespace
}  // namespace fsdpd
