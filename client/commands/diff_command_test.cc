// Tests of diff: exit code, stdout and stderr.
#include <absl/strings/str_cat.h>
#include <gtest/gtest.h>

#include "client/connect/outcome.h"
#include "client/testing/listed_jobs_case.h"

namespace fsdpd {
namespace {

using DiffCommandTest = ListedJobsCase;

TEST_F(DiffCommandTest, DiffComparesResolvedSpecs) {
  const std::string first = Write("a.yaml", kTinySpec);
  const std::string same = Write("b.yaml", absl::StrCat(kTinySpec, "resources: {nodes: 1}\n"));
  EXPECT_EQ(Run({"diff", first, same}), kExitOk) << out_ << err_;
  EXPECT_EQ(out_, "");
  const std::string other = Write("c.yaml", absl::StrCat(kTinySpec, "optimizer: {adamw: {lr: 0.5}}\n"));
  EXPECT_EQ(Run({"diff", first, "-f", other}), kExitSpecsDiffer);
  EXPECT_NE(out_.find("optimizer.adamw.lr"), std::string::npos) << out_;
  EXPECT_EQ(Run({"diff", first, other, "-o", "json"}), kExitSpecsDiffer);
  EXPECT_EQ(out_.find("[{\"field\": \"optimizer.adamw.lr\", \"first\": "), 0u) << out_;
  EXPECT_EQ(Run({"diff", "tiny-b2", first}), kExitSpecsDiffer) << "a job's";
  EXPECT_NE(out_.find("train.steps"), std::string::npos) << out_;
  EXPECT_EQ(Run({"diff", "nothere", first}), kExitNotFound);
  EXPECT_EQ(err_.find("nothere: no such file; "), 0u) << err_;
  EXPECT_EQ(Run({"diff", first}), kExitUsage);
}

}  // namespace
}  // namespace fsdpd
