// Tests of diff: exit code, stdout and stderr.
#include <absl/strings/str_cat.h>
#include <gtest/gtest.h>

#include "client/connect/outcome.h"
#include "client/testing/listed_jobs_case.h"
#include "fsdp/package/testing/package_writer.h"
#include "fsdp/plan/spec/testing/small_package.h"

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

// Regression: a row for each field of each graph.
TEST_F(DiffCommandTest, ShowsPackagesByDigestAndSize) {
  const auto write = [&](const char* name, const v1::Package& package) {
    WriteFile(Write(absl::StrCat(name, ".fsdpd"), ""), PackageOf(package, {}));
    return Write(absl::StrCat(name, ".yaml"), absl::StrCat("name: a\nmodel: {package: {path: ", name,
                                                           ".fsdpd}}\ndata: {synthetic: {}}\n"
                                                           "train: {steps: 3}\n"));
  };
  v1::Package larger = SmallPackage();
  larger.mutable_graphs(1)->mutable_params(0)->set_shape(0, 32);
  const std::string first = write("a", SmallPackage()), second = write("b", larger);
  EXPECT_EQ(Run({"diff", first, second}), kExitSpecsDiffer) << err_;
  for (const char* size :
       {"\nmodel.package  ", " digest ", " 4 units, 3632 parameters ", " 4 units, 4144 parameters\n"})
    EXPECT_NE(out_.find(size), std::string::npos) << size << " in " << out_;
  EXPECT_EQ(out_.find("graphs"), std::string::npos) << out_;
  EXPECT_EQ(Run({"diff", first, second, "-o", "json"}), kExitSpecsDiffer);
  EXPECT_NE(out_.find("model.package.graphs[1].params[0].shape"), std::string::npos) << out_;
}

}  // namespace
}  // namespace fsdpd
