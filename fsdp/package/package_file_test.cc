#include "fsdp/package/package_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>
#include <thread>
#include <vector>

#include "base/errno_status.h"
#include "base/temp_dir.h"
#include "fsdp/package/testing/package_writer.h"
#include "fsdp/plan/spec/testing/small_package.h"

namespace fsdpd {
namespace {

const FileContents kFiles = {{"graphs/0/forward.so", "code of graph 0"},
                             {"graphs/1/forward.so", std::string(5 << 20, 'x')},  // Several pieces.
                             {"values/0.bin", ""}};

std::string ContentOf(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

std::string GoodPackage() { return PackageOf(SmallPackage(), kFiles); }

TEST(PackageFile, ReadsItsManifest) {
  const TempDir dir;
  const std::string path = WriteFile(dir.File("a.fsdpd"), GoodPackage());
  const auto read = ReadPackage(path);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->model().digest().size(), 64u);
  EXPECT_EQ(read->files_size(), 3);
  EXPECT_EQ(read->model().units(3).name(), "head");
  EXPECT_EQ(read->model().path(), path);
}

TEST(PackageFile, UnpacksAllFiles) {
  const TempDir dir;
  const std::string path = WriteFile(dir.File("a.fsdpd"), GoodPackage());
  const std::string digest = ReadPackage(path)->model().digest(), out = dir.File("job/package");
  const auto unpacked = UnpackPackage(path, digest, out);
  ASSERT_TRUE(unpacked.ok()) << unpacked.status();
  EXPECT_EQ(unpacked->files_size(), 3);
  for (const auto& [name, bytes] : kFiles) EXPECT_EQ(ContentOf(out + "/" + name), bytes) << name;
}

// Ranks of a node start at the same time.
TEST(PackageFile, UnpacksOnceForAllRanks) {
  const TempDir dir;
  const std::string path = WriteFile(dir.File("a.fsdpd"), GoodPackage());
  const std::string digest = ReadPackage(path)->model().digest();
  std::vector<std::thread> ranks;
  std::atomic<int> complete{0};
  for (int rank = 0; rank < 4; ++rank) {
    ranks.emplace_back([&] {
      const bool ok = UnpackPackage(path, digest, dir.File("out")).ok();
      complete += ok && ContentOf(dir.File("out/graphs/1/forward.so")).size() == (5 << 20) ? 1 : 0;
    });
  }
  for (std::thread& rank : ranks) rank.join();
  EXPECT_EQ(complete, 4);
  WriteFile(dir.File("out/graphs/0/forward.so"), "changed");
  ASSERT_TRUE(UnpackPackage(path, digest, dir.File("out")).ok());
  EXPECT_EQ(ContentOf(dir.File("out/graphs/0/forward.so")), "changed") << "unpacked again";
}

TEST(PackageFile, CompletesWhatADeadRankLeft) {
  const TempDir dir;
  const std::string path = WriteFile(dir.File("a.fsdpd"), GoodPackage());
  std::filesystem::create_directories(dir.File("out/graphs/0"));
  WriteFile(dir.File("out/graphs/0/forward.so"), "longer than the code of graph 0");
  ASSERT_TRUE(UnpackPackage(path, ReadPackage(path)->model().digest(), dir.File("out")).ok());
  EXPECT_EQ(ContentOf(dir.File("out/graphs/0/forward.so")), "code of graph 0");
}

TEST(PackageFile, RefusesAnotherPackage) {
  const TempDir dir;
  const std::string path = WriteFile(dir.File("a.fsdpd"), GoodPackage());
  const absl::Status status = UnpackPackage(path, std::string(64, 'a'), dir.File("out")).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_NE(status.message().find("another package"), std::string::npos) << status;
  EXPECT_FALSE(std::filesystem::exists(dir.File("out")));
}

TEST(PackageFile, ReportsTheMemberThatCannotBeWritten) {
  const TempDir dir;
  const std::string path = WriteFile(dir.File("a.fsdpd"), GoodPackage());
  WriteFile(dir.File("graphs"), "a file where a directory must be");
  const absl::Status status = UnpackPackage(path, ReadPackage(path)->model().digest(), dir.path()).status();
  EXPECT_FALSE(status.ok());
  EXPECT_NE(status.message().find("graphs/0/forward.so"), std::string::npos) << status;
}

// Files may have 4 KiB, of the 5 MiB of the second one.
TEST(PackageFile, LeavesNoFilesOnFullDisk) {
  const TempDir dir;
  const std::string path = WriteFile(dir.File("a.fsdpd"), GoodPackage());
  const std::string digest = ReadPackage(path)->model().digest();
  signal(SIGXFSZ, SIG_IGN);
  rlimit before;
  getrlimit(RLIMIT_FSIZE, &before);
  rlimit small = before;
  small.rlim_cur = 4096;
  setrlimit(RLIMIT_FSIZE, &small);
  const absl::Status status = UnpackPackage(path, digest, dir.File("out")).status();
  setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_TRUE(IsDiskFull(status)) << status;
  EXPECT_NE(status.message().find("graphs/1/forward.so"), std::string::npos) << status;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(dir.File("out")))
    EXPECT_TRUE(entry.is_directory()) << entry.path();
  EXPECT_TRUE(UnpackPackage(path, digest, dir.File("out")).ok());
}

struct BadFile {
  const char* message;
  std::function<std::string()> bytes;
};

// A package whose manifest and members are changed independently.
std::string Changed(const std::function<void(v1::PackageManifest*, FileContents*)>& change) {
  v1::PackageManifest manifest = ManifestOf(SmallPackage());
  FileContents members = kFiles;
  ListFiles(members, &manifest);
  change(&manifest, &members);
  members["manifest.json"] = JsonOf(manifest);
  return ZipOf(members);
}

std::string WithJson(const std::string& json) { return ZipOf({{"manifest.json", json}}); }

TEST(PackageFile, RefusesInvalidFiles) {
  using M = v1::PackageManifest;
  using F = FileContents;
  const std::vector<BadFile> cases = {
      {"is not a package of fsdpctl model export", [] { return std::string("text"); }},
      {"is not a package of fsdpctl model export", [] { return std::string(); }},
      {"or is incomplete", [] { return GoodPackage().substr(0, 5 << 20); }},
      {"no manifest.json", [] { return ZipOf(kFiles); }},
      {"manifest.json is too large", [] { return WithJson(std::string((16 << 20) + 1, ' ')); }},
      {"manifest: ", [] { return WithJson("{\"schema\": 1, "); }},
      {"no_such_field", [] { return WithJson("{\"schema\": 1, \"no_such_field\": 2}"); }},
      {"got schema 2, want 1", [] { return WithJson("{\"schema\": 2, \"no_such_field\": 2}"); }},
      {"unknown schema 0", [] { return WithJson("{}"); }},
      {"invalid file name '../a'",
       [] { return Changed([](M* m, F*) { m->add_files()->set_name("../a"); }); }},
      {"invalid file name '/a'", [] { return Changed([](M* m, F*) { m->add_files()->set_name("/a"); }); }},
      {"invalid file name '.unpacked'",
       [] { return Changed([](M* m, F*) { m->add_files()->set_name(".unpacked"); }); }},
      {"invalid file name 'a//b'",
       [] { return Changed([](M* m, F*) { m->add_files()->set_name("a//b"); }); }},
      {"listed twice", [] { return Changed([](M* m, F*) { *m->add_files() = m->files(0); }); }},
      {"another size than in the manifest (got 15, want -1)",
       [] { return Changed([](M* m, F*) { m->mutable_files(0)->set_bytes(-1); }); }},
      {"SHA-256 of graphs/0/forward.so differs",
       [] { return Changed([](M* m, F*) { m->mutable_files(0)->clear_sha256(); }); }},
      {"not those of its model", [] { return Changed([](M* m, F*) { m->add_units(); }); }},
      {"has a path or a digest",
       [] { return Changed([](M* m, F*) { m->mutable_model()->set_path("/a"); }); }},
      {"values/0.bin is missing", [] { return Changed([](M*, F* f) { f->erase("values/0.bin"); }); }},
      {"another size than in the manifest (got 1, want 0)",
       [] { return Changed([](M*, F* f) { (*f)["values/0.bin"] = "x"; }); }},
      {"does not list extra", [] { return Changed([](M*, F* f) { (*f)["extra"] = "x"; }); }},
      {"SHA-256 of graphs/0/forward.so differs",
       [] { return Changed([](M*, F* f) { (*f)["graphs/0/forward.so"][0] = 'k'; }); }},
  };
  for (const BadFile& bad : cases) {
    const TempDir dir;
    const std::string path = WriteFile(dir.File("a.fsdpd"), bad.bytes());
    const auto read = ReadPackage(path);
    const absl::Status status =
        read.ok() ? UnpackPackage(path, read->model().digest(), dir.File("out")).status() : read.status();
    EXPECT_TRUE(absl::IsDataLoss(status) || absl::IsFailedPrecondition(status)) << status;
    EXPECT_NE(status.message().find(bad.message), std::string::npos) << bad.message << ": " << status;
    EXPECT_NE(status.message().find(path), std::string::npos) << status;
  }
}

TEST(PackageFile, ReportsMissingFile) {
  const TempDir dir;
  EXPECT_TRUE(absl::IsNotFound(ReadPackage(dir.File("none.fsdpd")).status()));
  EXPECT_TRUE(absl::IsDataLoss(ReadPackage(dir.path()).status())) << "a directory";
}

TEST(PackageFile, RefusesFilesThatAreNotListed) {
  const TempDir dir;
  const std::string outside = "../other.so";
  std::vector<v1::PackageManifest> manifests(3, ManifestOf(SmallPackage()));
  manifests[0].mutable_graphs(0)->mutable_evaluation()->set_library(outside);
  manifests[1].mutable_units(0)->add_initial_values()->set_file(outside);
  manifests[2].add_buffers()->set_file(outside);
  for (const v1::PackageManifest& manifest : manifests) {
    const std::string path = WriteFile(dir.path() + "/p", ZipOf({{"manifest.json", JsonOf(manifest)}}));
    EXPECT_THAT(std::string(ReadPackage(path).status().message()),
                ::testing::HasSubstr("'../other.so' is not one of its files"));
  }
}

}  // namespace
}  // namespace fsdpd
