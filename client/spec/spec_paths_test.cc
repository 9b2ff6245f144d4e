#include "client/spec/spec_paths.h"

#include <gtest/gtest.h>

namespace fsdpd {
namespace {

TEST(SpecPaths, ReturnsRelativePaths) {
  v1::JobSpec spec;
  spec.mutable_model()->mutable_plugin()->set_path("./mine.so");
  spec.mutable_checkpoint()->set_dir("./runs/");
  spec.mutable_checkpoint()->set_load("/old/./7/");
  spec.mutable_data()->add_tokens()->set_path("/t");
  spec.mutable_data()->add_validation()->set_path("v");
  spec.mutable_data()->mutable_validation(0)->set_mask("m");
  std::string told;
  for (const RelativePath& path : MakePathsAbsolute("/jobs/a", &spec))
    told += path.field + ": " + path.written + " " + path.absolute + "\n";
  EXPECT_EQ(told,
            "model.plugin.path: ./mine.so /jobs/a/mine.so\n"
            "checkpoint.dir: ./runs/ /jobs/a/runs\n"
            "data.validation[0].path: v /jobs/a/v\n"
            "data.validation[0].mask: m /jobs/a/m\n");
  EXPECT_EQ(spec.checkpoint().dir(), "/jobs/a/runs");
  EXPECT_EQ(spec.checkpoint().load(), "/old/7");
  EXPECT_EQ(spec.data().tokens(0).path(), "/t");
  EXPECT_EQ(spec.data().tokens(0).mask(), "") << "an empty path stays empty";
  EXPECT_EQ(spec.data().validation(0).mask(), "/jobs/a/m");
}

// Regression: they were normalized silently, so the rules that reject them did not see them.
TEST(SpecPaths, PreservesDotDot) {
  EXPECT_EQ(AbsolutePath("../runs", "/jobs/a"), "/jobs/a/../runs");
  EXPECT_EQ(AbsolutePath("/old/x/../7", "/jobs"), "/old/x/../7");
  EXPECT_EQ(AbsolutePath("./a..b/./c", "/jobs"), "/jobs/a..b/c");
}

TEST(SpecPaths, OmitsUnsetFields) {
  v1::JobSpec spec;
  EXPECT_TRUE(MakePathsAbsolute("/jobs", &spec).empty());
  EXPECT_EQ(spec.ByteSizeLong(), 0u);
}

}  // namespace
}  // namespace fsdpd
