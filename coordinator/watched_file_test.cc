#include "coordinator/watched_file.h"

#include <absl/strings/str_cat.h>
#include <absl/time/clock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>

#include "base/temp_dir.h"

namespace fsdpd {
namespace {

using Text = std::optional<std::string>;

TEST(WatchedFile, IsReadAgainWhenItIsWrittenAndNotOtherwise) {
  const TempDir dir;
  FakeClock clock;
  clock.StepWall(absl::Now() + absl::Hours(1) - clock.Wall());  // Long after it was written.
  std::ofstream(dir.File("f")) << "one";
  WatchedFile file(dir.File("f"), &clock);
  EXPECT_EQ(file.Changed().value(), Text("one"));
  EXPECT_EQ(file.Changed().value(), Text());
  std::ofstream(dir.File("f")) << "two!";
  EXPECT_EQ(file.Changed().value(), Text("two!"));
  std::ofstream(dir.File("f"), std::ofstream::trunc);
  EXPECT_EQ(file.Changed().value(), Text(""));
}

TEST(WatchedFile, ThatWasJustWrittenIsReadOnceMore) {
  const TempDir dir;
  FakeClock clock;
  clock.StepWall(absl::Now() - clock.Wall());
  std::ofstream(dir.File("f")) << "one";
  WatchedFile file(dir.File("f"), &clock);
  EXPECT_EQ(file.Changed().value(), Text("one"));
  EXPECT_EQ(file.Changed().value(), Text("one"));
}

TEST(WatchedFile, ThatOthersMayWriteOrThatIsNoneIsRefused) {
  const TempDir dir;
  FakeClock clock;
  std::ofstream(dir.File("f")) << "one";
  ASSERT_EQ(chmod(dir.File("f").c_str(), 0666), 0);
  EXPECT_EQ(WatchedFile(dir.File("f"), &clock).Changed().status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(WatchedFile(dir.path(), &clock).Changed().status().message(),
            absl::StrCat(dir.path(), ": Is a directory"));
  EXPECT_EQ(WatchedFile(dir.File("none"), &clock).Changed().status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace fsdpd
