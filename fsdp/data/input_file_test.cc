#include "fsdp/data/input_file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <fstream>

#include "base/temp_dir.h"

namespace fsdpd {
namespace {

using ::testing::HasSubstr;

class InputFileTest : public ::testing::Test {
 protected:
  std::string Write(const std::string& text) {
    std::ofstream(dir_.File("data"), std::ios::binary) << text;
    return dir_.File("data");
  }

  TempDir dir_;
};

TEST_F(InputFileTest, ReadsAnyRange) {
  const auto file = InputFile::Open(Write("0123456789"));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ((*file)->size(), 10);
  std::string text(4, ' ');
  ASSERT_TRUE((*file)->Read(6, 4, &text[0]).ok());
  EXPECT_EQ(text, "6789");
  EXPECT_TRUE((*file)->Read(10, 0, nullptr).ok());
}

TEST_F(InputFileTest, NamesMissingFile) {
  const absl::Status status = InputFile::Open(dir_.File("absent")).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(status.ToString(), HasSubstr("absent: open: No such"));
}

TEST_F(InputFileTest, RejectsDirectoryAndPipeWithoutBlocking) {
  EXPECT_THAT(InputFile::Open(dir_.path()).status().ToString(), HasSubstr("not a regular file"));
  ASSERT_EQ(mkfifo(dir_.File("pipe").c_str(), 0600), 0);
  EXPECT_THAT(InputFile::Open(dir_.File("pipe")).status().ToString(), HasSubstr("not a regular file"));
}

// A path may be invalid; the limit of open files is a machine problem.
TEST_F(InputFileTest, SeparatesMachineErrorsFromPathErrors) {
  const std::string path = Write("0123456789");
  EXPECT_TRUE(absl::IsInvalidArgument(InputFile::Open(dir_.File(std::string(300, 'n'))).status()));
  rlimit before;
  getrlimit(RLIMIT_NOFILE, &before);
  rlimit none = before;
  none.rlim_cur = 0;
  setrlimit(RLIMIT_NOFILE, &none);
  const absl::Status status = InputFile::Open(path).status();
  setrlimit(RLIMIT_NOFILE, &before);
  EXPECT_TRUE(absl::IsInternal(status)) << status;
}

TEST_F(InputFileTest, ReportsByteOfTruncation) {
  const auto file = InputFile::Open(Write("0123456789"));
  ASSERT_EQ(truncate((*file)->path().c_str(), 7), 0);
  char text[10];
  EXPECT_TRUE((*file)->Read(0, 7, text).ok());
  const absl::Status status = (*file)->Read(2, 8, text);
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(status.ToString(), HasSubstr("(ends at byte 7, had 10 bytes)"));
  EXPECT_THAT((*file)->Read(9, 1, text).ToString(), HasSubstr("ends at byte 7")) << "far before what is read";
}

TEST_F(InputFileTest, DetectsModification) {
  const auto open = [this] { return *InputFile::Open(Write("0123456789")); };
  auto file = open();
  EXPECT_TRUE(file->CheckUnchanged().ok());
  ASSERT_EQ(link(file->path().c_str(), dir_.File("backup").c_str()), 0);
  EXPECT_TRUE(file->CheckUnchanged().ok()) << "another name is none of its content";
  const timespec times[2] = {{1, 0}, {1, 0}};
  ASSERT_EQ(utimensat(AT_FDCWD, file->path().c_str(), times, 0), 0);
  EXPECT_THAT(file->CheckUnchanged().message(), HasSubstr("modified while it was read (was 10 bytes, "));
  EXPECT_THAT(file->CheckUnchanged().message(), HasSubstr("now 10 bytes, written to at 1.000000000"));
  file = open();
  ASSERT_EQ(truncate(file->path().c_str(), 9), 0);
  EXPECT_TRUE(absl::IsDataLoss(file->CheckUnchanged())) << file->CheckUnchanged();
  EXPECT_THAT(file->CheckUnchanged().message(), HasSubstr("now 9 bytes"));
  file = open();
  std::ofstream(dir_.File("new")) << "0123456789";
  ASSERT_EQ(rename(dir_.File("new").c_str(), file->path().c_str()), 0);
  EXPECT_TRUE(absl::IsDataLoss(file->CheckUnchanged())) << file->CheckUnchanged();
  EXPECT_THAT(file->CheckUnchanged().message(), HasSubstr("file was replaced while it was read (was inode "));
  file = open();
  ASSERT_EQ(unlink(file->path().c_str()), 0);
  EXPECT_TRUE(absl::IsNotFound(file->CheckUnchanged())) << file->CheckUnchanged();
}

}  // namespace
}  // namespace fsdpd
