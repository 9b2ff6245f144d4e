#include "base/process/text_files.h"

#include <gtest/gtest.h>

#include "base/temp_dir.h"

namespace fsdpd {
namespace {

TEST(TextFiles, ReplacedFileHasNewText) {
  const TempDir directory;
  const std::string path = directory.path() + "/file";
  EXPECT_EQ(ReadText(path), "");
  ASSERT_TRUE(ReplaceText(path, "one\n").ok());
  ASSERT_TRUE(ReplaceText(path, "two\n").ok());
  EXPECT_EQ(ReadText(path), "two\n");
  ASSERT_EQ(EntriesIn(directory.path()).size(), 1);
}

// Files of /proc can be opened and then not be read.
TEST(TextFiles, UnreadableFileIsEmpty) {
  const TempDir directory;
  EXPECT_EQ(ReadText(directory.path()), "");
}

TEST(TextFiles, MissingDirectoryIsAnError) {
  const TempDir directory;
  std::error_code error;
  EXPECT_TRUE(EntriesIn(directory.path() + "/none", &error).empty());
  EXPECT_EQ(error, std::errc::no_such_file_or_directory);
  EXPECT_TRUE(absl::IsNotFound(ReplaceText(directory.path() + "/none/file", "")));
}

}  // namespace
}  // namespace fsdpd
