// Tests of `migrate`: exit code, stdout and stderr. The tests of client/migrate cover each setting.

#include <absl/strings/str_cat.h>
#include <absl/strings/str_replace.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "base/temp_dir.h"
#include "client/connect/outcome.h"
#include "client/testing/command_case.h"

namespace fsdpd {
namespace {

class MigrateCommandTest : public CommandCase {
 protected:
  TempDir dir_;
};

constexpr char kMegatron[] =
    "--use-megatron-fsdp --num-layers 2 --hidden-size 64 --num-attention-heads 4 --ffn-hidden-size 128 "
    "--swiglu "
    "--normalization RMSNorm --position-embedding-type rope --disable-bias-linear --vocab-size 256 "
    "--seq-length 64 "
    "--attention-dropout 0 --hidden-dropout 0 --train-iters 9 --lr 1e-3 --bf16 --mock-data ";

TEST_F(MigrateCommandTest, WritesValidSpecAndReportsChanges) {
  const std::string changed = std::string(kMegatron) + "--average-in-collective --log-interval 5";
  EXPECT_EQ(RunCommand({"migrate", "-f", "-", "--ranks-per-node", "4", "--name", "moved"}, changed), 0)
      << err_;
  EXPECT_NE(err_.find("adjusted: --average-in-collective: "), std::string::npos) << err_;
  EXPECT_NE(err_.find("(true -> false) [average_in_collective_off]"), std::string::npos) << err_;
  EXPECT_NE(err_.find("--log-interval"), std::string::npos) << err_;
  EXPECT_NE(out_.find("name: moved\n"), std::string::npos) << out_;
  const std::string spec = out_;
  EXPECT_EQ(RunCommand({"validate", "-f", "-", "--offline"}, spec), 0) << err_ << spec;
}

// Regression: relative paths were rejected with the advice that fsdpctl makes them absolute.
TEST_F(MigrateCommandTest, MakesPathsAbsolute) {
  const std::string run =
      absl::StrReplaceAll(kMegatron, {{"--mock-data", "\n--data-path 0.5 a 0.5 sub/b /c\n"}}) +
      "--ckpt-format fsdp_dtensor --save-interval 3\n--save ./7/ --load /old";
  const std::string file = dir_.File("pretrain.args");
  std::ofstream(file) << run;
  EXPECT_EQ(RunCommand({"migrate", "-f", file}), 0) << err_;
  EXPECT_NE(out_.find(absl::StrCat("dir: ", dir_.File("7"), "\n")), std::string::npos) << out_;
  for (const std::string& path : {dir_.File("a"), dir_.File("sub/b"), std::string("/c"), std::string("/old")})
    EXPECT_NE(out_.find(path + "\n"), std::string::npos) << path << "\n" << out_;
  EXPECT_NE(err_.find(absl::StrCat(file,
                                   ":4:1: adjusted: --save: becomes checkpoint.dir: relative paths are taken "
                                   "from the file's directory (./7/ -> ",
                                   dir_.File("7"), ") [relative_path]\n")),
            std::string::npos)
      << err_;
  EXPECT_NE(err_.find(absl::StrCat(file, ":2:1: adjusted: --data-path: becomes data.tokens[0].path: ")),
            std::string::npos)
      << err_;
  EXPECT_EQ(err_.find("data.tokens[1]"), std::string::npos) << "a list of files is reported once";
  const std::string spec = out_;
  EXPECT_EQ(RunCommand({"validate", "-f", "-", "--offline"}, spec), 0) << err_ << spec;
  EXPECT_EQ(RunCommand({"migrate", "-f", "-"}, run), 0) << err_;
  EXPECT_NE(err_.find("relative paths are taken from the directory that fsdpctl runs in"), std::string::npos)
      << err_;
}

TEST_F(MigrateCommandTest, RejectsPathsThatNodesCannotOpen) {
  for (const std::string path : {"~/runs", "msc://bucket/runs"}) {
    const std::string run =
        std::string(kMegatron) + "--ckpt-format fsdp_dtensor --save-interval 3\n--save " + path;
    EXPECT_EQ(RunCommand({"migrate", "-f", "-"}, run), kExitSpecRefused) << path;
    EXPECT_NE(err_.find("<stdin>:2:1: error: --save: becomes checkpoint.dir: '" + path + "' is not a path"),
              std::string::npos)
        << err_;
    EXPECT_EQ(err_.find("is relative"), std::string::npos) << err_;
  }
}

TEST_F(MigrateCommandTest, RejectsInvalidMegatronConfig) {
  const std::string refused = std::string(kMegatron) + "\n--save /c --use-tp-pp-dp-mapping";
  EXPECT_EQ(RunCommand({"migrate", "-f", "-"}, refused), kExitSpecRefused);
  EXPECT_EQ(out_, "");
  EXPECT_NE(err_.find("<stdin>:2:11: error: --use-tp-pp-dp-mapping: "), std::string::npos) << err_;
  EXPECT_NE(err_.find("[fsdp_dtensor_only]"), std::string::npos) << err_;
  EXPECT_EQ(RunCommand({"migrate", "-f", dir_.File("absent")}), kExitUsage);
}

// Regression: nothing was printed with -o json.
TEST_F(MigrateCommandTest, RejectedMigrationPrintsJson) {
  const std::string refused = std::string(kMegatron) + "\n--micro-batch-size 0 --lr $LR";
  EXPECT_EQ(RunCommand({"migrate", "-f", "-", "-o", "json"}, refused), kExitSpecRefused);
  EXPECT_NE(out_.find("\"rule\": \"micro_batch_range\",\n    \"severity\": \"error\",\n    \"field\": "
                      "\"--micro-batch-size\""),
            std::string::npos)
      << out_;
  EXPECT_NE(out_.find("\"file\": \"<stdin>\",\n    \"line\": 2,\n    \"column\": 1"), std::string::npos)
      << out_;
  EXPECT_NE(err_.find("<stdin>:2:1: error: --micro-batch-size: becomes train.micro_batch: micro_batch is 0 "),
            std::string::npos)
      << err_;
  EXPECT_NE(err_.find("<stdin>:2:27: error: --lr: the value of $LR is not in this text"), std::string::npos)
      << err_;
  EXPECT_EQ(RunCommand({"migrate", "-f", "-", "-o", "yaml"}, refused), kExitSpecRefused);
  EXPECT_EQ(out_.find("violations:\n"), 0u) << out_;
  EXPECT_EQ(RunCommand({"migrate", "-f", "-", "--name", "A", "--nodes", "99999"}, kMegatron),
            kExitSpecRefused);
  EXPECT_NE(err_.find("--name A: error: name: 'A' may hold only"), std::string::npos) << err_;
  EXPECT_NE(err_.find("--nodes 99999: error: resources.nodes: nodes is 99999 "), std::string::npos) << err_;
}

}  // namespace
}  // namespace fsdpd
