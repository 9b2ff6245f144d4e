#include "fsdp/checkpoint/format/part_directory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/inotify.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "base/errno_status.h"
#include "base/temp_dir.h"
#include "fsdp/checkpoint/testing/small_checkpoint.h"

namespace fsdpd {
namespace {

constexpr char kMark[] = "mark.json";

// Starts without files of an interrupted build.
absl::StatusOr<std::unique_ptr<PartDirectory>> Begin(const std::string& target,
                                                     const std::string& mark = "") {
  absl::StatusOr<std::unique_ptr<PartDirectory>> directory = PartDirectory::Create(target, mark);
  if (!directory.ok()) return directory;
  if (const absl::Status cleared = (*directory)->KeepOnly({}); !cleared.ok()) return cleared;
  return directory;
}

namespace fs = std::filesystem;
using ::testing::HasSubstr;

TEST(PartDirectory, AppearsOnCommit) {
  TempDir dir;
  const std::string target = dir.File("out");
  {
    const auto directory = Begin(target + "/");
    ASSERT_TRUE(directory.ok()) << directory.status();
    WriteFileOf((*directory)->path() + "/model.safetensors", "x");
    EXPECT_FALSE(fs::exists(target));
    ASSERT_TRUE((*directory)->Commit().ok());
  }
  EXPECT_EQ(ReadFileOf(target + "/model.safetensors"), "x");
  EXPECT_FALSE(fs::exists(target + ".part"));
}

TEST(PartDirectory, KeepsReplacedDirectoryUntilCommit) {
  TempDir dir;
  const std::string target = dir.File("out");
  fs::create_directories(target);
  WriteFileOf(target + "/old", "x");
  for (const bool commits : {false, true}) {
    const auto directory = Begin(target, kMark);
    ASSERT_TRUE(directory.ok()) << directory.status();
    WriteFileOf((*directory)->path() + "/model.safetensors", "y");
    EXPECT_EQ(ReadFileOf(target + "/old"), "x");
    if (commits) {
      ASSERT_TRUE((*directory)->Commit().ok());
    }
  }
  EXPECT_FALSE(fs::exists(target + "/old"));
  EXPECT_EQ(ReadFileOf(target + "/model.safetensors"), "y");
  EXPECT_FALSE(fs::exists(target + ".replaced"));
  EXPECT_FALSE(fs::exists(target + ".part"));
}

// The renames that the kernel reports for a directory, in order: "from out.part", "to out".
std::string MovesIn(int inotify) {
  std::string moves;
  alignas(inotify_event) char events[4096];
  const ssize_t bytes = read(inotify, events, sizeof(events));
  for (ssize_t at = 0; at < bytes;) {
    const auto* event = reinterpret_cast<const inotify_event*>(events + at);
    moves += std::string((event->mask & IN_MOVED_FROM) != 0 ? "from " : "to ") + event->name + "; ";
    at += static_cast<ssize_t>(sizeof(inotify_event) + event->len);
  }
  return moves;
}

// Readers always see one or the other: a single call exchanges both.
TEST(PartDirectory, ReplacesByAtomicExchange) {
  TempDir dir;
  const std::string target = dir.File("out");
  fs::create_directories(target);
  WriteFileOf(target + "/old", "x");
  const int inotify = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
  ASSERT_GE(inotify, 0);
  const auto directory = PartDirectory::Create(target, kMark);
  ASSERT_TRUE(directory.ok()) << directory.status();
  ASSERT_GE(inotify_add_watch(inotify, dir.path().c_str(), IN_MOVE), 0);
  ASSERT_TRUE((*directory)->Commit().ok());
  const std::string moves = MovesIn(inotify);
  close(inotify);
  EXPECT_EQ(moves,
            "from out.part; to out; from out; to out.part; "
            "from out.part; to out.replaced; ");
  EXPECT_FALSE(fs::exists(target + "/old"));
}

// A file system without exchange, and a crash between two renames.
TEST(PartDirectory, RestoresOldDirectoryAfterCrash) {
  TempDir dir;
  const std::string target = dir.File("out");
  fs::create_directories(target + ".replaced");
  WriteFileOf(target + ".replaced/old", "x");
  fs::create_directories(target + ".part");
  WriteFileOf(target + ".part/model.safetensors", "y");
  { EXPECT_TRUE(Begin(target, kMark).ok()); }
  EXPECT_EQ(ReadFileOf(target + "/old"), "x");
  EXPECT_FALSE(fs::exists(target + ".part"));
}

TEST(PartDirectory, RemovesReplacedDirectoryOfKilledProcess) {
  TempDir dir;
  const std::string target = dir.File("out"), part = target + ".part";
  fs::create_directories(target);
  WriteFileOf(target + "/mark.json", "new");
  fs::create_directories(part + "/directory");
  WriteFileOf(part + "/mark.json", "old");
  WriteFileOf(part + "/merges.txt", "somebody's");
  WriteFileOf(part + "/directory/file", "somebody's");
  const auto directory = Begin(target, kMark);
  ASSERT_TRUE(directory.ok()) << directory.status();
  EXPECT_TRUE(fs::is_empty(part));
  EXPECT_EQ(ReadFileOf(target + "/mark.json"), "new");
}

TEST(PartDirectory, RejectsCurrentDirectory) {
  TempDir dir;
  fs::create_directories(dir.File("here"));
  const absl::Status here = PartDirectory::Create(dir.File("here/.")).status();
  EXPECT_THAT(here.message(), HasSubstr("here/.: already exists")) << here;
  EXPECT_TRUE(fs::exists(dir.File("here")));
}

TEST(PartDirectory, DestructionWithoutCommitLeavesNothing) {
  TempDir dir;
  {
    const auto directory = Begin(dir.File("out"));
    ASSERT_TRUE(directory.ok()) << directory.status();
    WriteFileOf((*directory)->path() + "/__0_0.distcp", "x");
  }
  EXPECT_TRUE(fs::is_empty(dir.path()));
}

TEST(PartDirectory, DiscardsFilesOfKilledProcess) {
  TempDir dir;
  fs::create_directory(dir.File("out.part"));
  for (const char* name : {".metadata", "__0_0.distcp.x.part", "model.safetensors", "config.json.tmp"}) {
    WriteFileOf(dir.File("out.part") + "/" + name, "old");
  }
  const auto directory = Begin(dir.File("out"));
  ASSERT_TRUE(directory.ok()) << directory.status();
  EXPECT_TRUE(fs::is_empty((*directory)->path()));
}

TEST(PartDirectory, KeptFilesSurvive) {
  TempDir dir;
  const std::string part = dir.File("out.part");
  {
    const auto directory = Begin(dir.File("out"));
    ASSERT_TRUE(directory.ok()) << directory.status();
    for (const char* name : {"__0_0.distcp", "__0_1.distcp", "__0_2.distcp.x.part"})
      WriteFileOf(part + "/" + name, name);
    (*directory)->Keep("__0_0.distcp");
    (*directory)->Keep("__0_1.distcp");
  }
  EXPECT_FALSE(fs::exists(part + "/__0_2.distcp.x.part"));
  {
    const auto directory = PartDirectory::Create(dir.File("out"));
    ASSERT_TRUE(directory.ok()) << directory.status();
  }
  EXPECT_EQ(ReadFileOf(part + "/__0_1.distcp"), "__0_1.distcp") << "who only looks removes nothing";
  {
    const auto directory = PartDirectory::Create(dir.File("out"));
    ASSERT_TRUE(directory.ok()) << directory.status();
    ASSERT_TRUE((*directory)->KeepOnly({"__0_0.distcp"}).ok());
    EXPECT_FALSE(fs::exists(part + "/__0_1.distcp"));
    ASSERT_TRUE((*directory)->Commit().ok());
  }
  EXPECT_EQ(ReadFileOf(dir.File("out") + "/__0_0.distcp"), "__0_0.distcp");
}

// A directory of other files may have that name.
TEST(PartDirectory, KeepsUnexpectedFiles) {
  TempDir dir;
  fs::create_directory(dir.File("out.part"));
  WriteFileOf(dir.File("out.part") + "/__0_0.distcp", "old");
  WriteFileOf(dir.File("out.part") + "/thesis.tex", "mine");
  const auto directory = Begin(dir.File("out"));
  EXPECT_TRUE(absl::IsFailedPrecondition(directory.status())) << directory.status();
  EXPECT_THAT(directory.status().message(), HasSubstr("thesis.tex"));
  EXPECT_EQ(ReadFileOf(dir.File("out.part") + "/thesis.tex"), "mine");
  EXPECT_EQ(ReadFileOf(dir.File("out.part") + "/__0_0.distcp"), "old");
}

TEST(PartDirectory, RejectsConcurrentBuild) {
  TempDir dir;
  const auto first = Begin(dir.File("out"));
  ASSERT_TRUE(first.ok());
  WriteFileOf((*first)->path() + "/model.safetensors", "x");
  const auto second = Begin(dir.File("out"));
  EXPECT_TRUE(absl::IsFailedPrecondition(second.status())) << second.status();
  EXPECT_EQ(ReadFileOf((*first)->path() + "/model.safetensors"), "x");
}

TEST(PartDirectory, KeepsExistingTarget) {
  TempDir dir;
  fs::create_directory(dir.File("empty"));
  fs::create_directory(dir.File("full"));
  WriteFileOf(dir.File("full") + "/x", "x");
  EXPECT_TRUE(Begin(dir.File("empty")).ok());
  for (const std::string& target : {dir.File("full"), dir.File("full") + "/x"}) {
    const auto directory = Begin(target);
    EXPECT_TRUE(absl::IsAlreadyExists(directory.status())) << directory.status();
  }
  EXPECT_EQ(ReadFileOf(dir.File("full") + "/x"), "x");
  EXPECT_FALSE(Begin(dir.File("absent/out")).ok());
}

TEST(PartDirectory, DetectsInsufficientSpace) {
  TempDir dir;
  EXPECT_TRUE(CheckFreeSpace(dir.File("out"), 1).ok());
  const absl::Status full = CheckFreeSpace(dir.File("out"), int64_t{1} << 60);
  EXPECT_TRUE(absl::IsUnavailable(full)) << full;
  EXPECT_TRUE(IsDiskFull(full)) << full;
  EXPECT_THAT(full.message(), HasSubstr(dir.path() + ": needs 1024.0 PiB, but only "));
}

TEST(PartDirectory, RejectsPathBelowFile) {
  TempDir dir;
  WriteFileOf(dir.File("file"), "x");
  const absl::Status below = PartDirectory::Create(dir.File("file/out")).status();
  EXPECT_THAT(below.message(), HasSubstr("file/out: Not a directory")) << below;
  const absl::Status itself = PartDirectory::Create(dir.File("file")).status();
  EXPECT_THAT(itself.message(), HasSubstr("file: already exists")) << itself;
}

}  // namespace
}  // namespace fsdpd
