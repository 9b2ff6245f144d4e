#include "agent/launch/path_roots.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/temp_dir.h"

namespace fsdpd {
namespace {

class PathRootsTest : public testing::Test {
 protected:
  PathRootsTest() {
    for (const char* directory : {"data", "data-not"})
      std::filesystem::create_directory(dir_.File(directory));
    for (const char* file : {"data/a.bin", "data-not/a.bin"}) std::ofstream(dir_.File(file)) << "x";
    roots_ = {ResolvePathRoot(dir_.File("data")).value()};
  }
  bool Below(const std::string& path) { return LiesBelow(path, roots_).value(); }
  void Link(const std::string& to, const std::string& name) {
    std::filesystem::create_symlink(dir_.File(to), dir_.File(name));
  }

  TempDir dir_;
  std::vector<PathRoot> roots_;
};

TEST_F(PathRootsTest, AcceptsOnlyPathsBelowRoots) {
  EXPECT_TRUE(Below(dir_.File("data/a.bin")));
  EXPECT_TRUE(Below(dir_.File("data")));
  EXPECT_TRUE(Below(dir_.File("data/")));
  EXPECT_TRUE(Below(dir_.path() + "/./data//a.bin"));
  for (const char* path : {"data-not/a.bin", "data/../data-not/a.bin", "data-not/../data/a.bin", "dat", ""})
    EXPECT_FALSE(Below(dir_.File(path))) << path;
  EXPECT_FALSE(Below(""));
  EXPECT_FALSE(Below("/"));
  EXPECT_FALSE(LiesBelow(dir_.File("data/a.bin"), {}).value());
}

// The job creates the directory of its checkpoints.
TEST_F(PathRootsTest, MissingPathFollowsItsNearestParent) {
  EXPECT_TRUE(Below(dir_.File("data/run/one")));
  EXPECT_FALSE(Below(dir_.File("data-not/run/one")));
  Link("data-not", "data/out");
  EXPECT_FALSE(Below(dir_.File("data/out/run/one")));
}

// The owner of the link, or of the directory before "..", could change its target before the path is opened.
TEST_F(PathRootsTest, RejectsOutsideLinksThatLeadIn) {
  Link("data/a.bin", "in.bin");
  Link("data", "link");
  for (const char* path : {"in.bin", "link/a.bin", "link/../data/a.bin"})
    EXPECT_FALSE(Below(dir_.File(path))) << path;
}

TEST_F(PathRootsTest, RejectsInsideLinksThatLeadOut) {
  Link("data-not/a.bin", "data/out.bin");
  EXPECT_FALSE(Below(dir_.File("data/out.bin")));
  Link("data/a.bin", "data/in.bin");
  EXPECT_TRUE(Below(dir_.File("data/in.bin")));
}

TEST_F(PathRootsTest, DanglingLinkIsUnavailable) {
  Link("data-not/later", "data/later");
  for (const char* path : {"data/later", "data/later/", "data/later/iter_0000001"}) {
    const absl::Status unknown = LiesBelow(dir_.File(path), roots_).status();
    EXPECT_TRUE(absl::IsUnavailable(unknown)) << path;
    EXPECT_EQ(unknown.message(), "No such file or directory");
  }
}

TEST_F(PathRootsTest, RootMayBeALinkOrItsTarget) {
  Link("data", "link");
  const std::vector<PathRoot> linked = {ResolvePathRoot(dir_.File("link/")).value()};
  EXPECT_EQ(linked[0].given, dir_.File("link"));
  EXPECT_EQ(linked[0].resolved, roots_[0].resolved);
  EXPECT_TRUE(LiesBelow(dir_.File("link/a.bin"), linked).value());
  EXPECT_TRUE(LiesBelow(roots_[0].resolved + "/a.bin", linked).value());
  const PathRoot climbs = ResolvePathRoot(dir_.File("link/../data")).value();
  EXPECT_EQ(climbs.given, climbs.resolved);
}

TEST_F(PathRootsTest, FilesystemRootAcceptsAllWithoutDotDot) {
  const std::vector<PathRoot> all = {ResolvePathRoot("/").value()};
  EXPECT_TRUE(LiesBelow(dir_.File("data/a.bin"), all).value());
  EXPECT_TRUE(LiesBelow("/nowhere", all).value());
  EXPECT_FALSE(LiesBelow("/nowhere/..", all).value());
}

TEST_F(PathRootsTest, ReportsMissingDirectory) {
  EXPECT_EQ(ResolvePathRoot("/nowhere").status().message(), "/nowhere: No such file or directory");
  const std::string file = dir_.File("data/a.bin");
  EXPECT_EQ(ResolvePathRoot(file).status().message(), file + ": not a directory");
}

TEST_F(PathRootsTest, NamesOfReturnsGivenPaths) {
  Link("data", "link");
  EXPECT_EQ(NamesOf({roots_[0], ResolvePathRoot(dir_.File("link")).value()}),
            dir_.File("data") + ", " + dir_.File("link"));
}

}  // namespace
}  // namespace fsdpd
