#include "fsdp/comm/file_store.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "base/temp_dir.h"

namespace fsdpd {
namespace {

TEST(FileStore, IsSharedBetweenProcesses) {
  TempDir dir;
  const auto writer = FileStore::Open(dir.File("a/b"));
  const auto reader = FileStore::Open(dir.File("a/b"));
  ASSERT_TRUE(writer.ok() && reader.ok());
  const std::string value("a\0b", 3);
  ASSERT_TRUE((*writer)->Set("gather/0:1.x", value).ok());
  EXPECT_EQ(*(*reader)->Get("gather/0:1.x", absl::ZeroDuration()), value);
  ASSERT_TRUE((*writer)->Set("empty", "").ok());
  EXPECT_EQ(*(*reader)->Get("empty", absl::ZeroDuration()), "");
}

TEST(FileStore, SimilarKeysAreDistinct) {
  TempDir dir;
  const auto store = FileStore::Open(dir.path());
  int number = 0;
  for (const char* key : {"a/b", "a%2Fb", "a.b", "a_b", "..", ".new."}) {
    ASSERT_TRUE((*store)->Set(key, std::to_string(++number)).ok()) << key;
  }
  EXPECT_EQ(*(*store)->Get("a/b", absl::ZeroDuration()), "1");
  EXPECT_EQ(*(*store)->Get("..", absl::ZeroDuration()), "5");
}

TEST(FileStore, GetWaitsForTheKey) {
  TempDir dir;
  const auto store = FileStore::Open(dir.path());
  std::thread writer([&] {
    ASSERT_TRUE((*store)->Set("other", "x").ok());
    ASSERT_TRUE((*store)->Set("late", "value").ok());
  });
  EXPECT_EQ(*(*store)->Get("late", absl::InfiniteDuration()), "value");
  writer.join();
}

TEST(FileStore, TimeoutNamesTheKey) {
  TempDir dir;
  const auto store = FileStore::Open(dir.path());
  const auto result = (*store)->Get("never", absl::Milliseconds(5));
  EXPECT_EQ(result.status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_NE(result.status().ToString().find("never"), std::string::npos);
  EXPECT_NE(result.status().ToString().find(dir.path()), std::string::npos);
}

TEST(FileStore, BoundsTheWait) {
  TempDir dir;
  const auto store = FileStore::Open(dir.path(), /*longest_wait=*/absl::Milliseconds(5));
  const auto result = (*store)->Get("never", absl::Hours(24));
  EXPECT_EQ(result.status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_NE(result.status().ToString().find("within 5ms"), std::string::npos) << result.status();
}

TEST(FileStore, RefusesADifferentValue) {
  TempDir dir;
  const auto store = FileStore::Open(dir.path());
  ASSERT_TRUE((*store)->Set("k", "one").ok());
  EXPECT_TRUE((*store)->Set("k", "one").ok());
  EXPECT_EQ((*store)->Set("k", "two").code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(*(*store)->Get("k", absl::ZeroDuration()), "one");
}

TEST(FileStore, OneOfManyWritersWins) {
  TempDir dir;
  const auto store = FileStore::Open(dir.path());
  std::vector<absl::Status> statuses(8);
  std::vector<std::thread> writers;
  for (size_t w = 0; w < statuses.size(); ++w) {
    writers.emplace_back([&, w] { statuses[w] = (*store)->Set("k", std::string(1000, 'a' + w)); });
  }
  for (std::thread& writer : writers) writer.join();
  const std::string value = *(*store)->Get("k", absl::ZeroDuration());
  for (size_t w = 0; w < statuses.size(); ++w)
    EXPECT_EQ(statuses[w].ok(), value[0] == static_cast<char>('a' + w));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(dir.path()), {}), 1)
      << "what was written aside";
}

TEST(FileStore, ErrorNamesTheDirectory) {
  TempDir dir;
  std::ofstream(dir.File("file")) << "x";
  const auto store = FileStore::Open(dir.File("file"));
  EXPECT_EQ(store.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(store.status().ToString().find(dir.File("file")), std::string::npos);
  const auto gone = FileStore::Open(dir.File("gone"));
  std::filesystem::remove(dir.File("gone"));
  EXPECT_EQ((*gone)->Set("k", "v").code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace fsdpd
