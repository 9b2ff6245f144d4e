#include "coordinator/access/audit_log.h"

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/temp_dir.h"

namespace {

std::atomic<bool> disk_hangs{false}, disk_is_reached{false};

}  // namespace

// Simulates a network file system whose server is gone.
extern "C" int fdatasync(int fd) {
  static const auto real = reinterpret_cast<int (*)(int)>(dlsym(RTLD_NEXT, "fdatasync"));
  disk_is_reached = true;
  while (disk_hangs) std::this_thread::yield();
  return real(fd);
}

namespace fsdpd {
namespace {

using ::testing::HasSubstr;

AuditRecord Record(const std::string& object) {
  return {absl::FromUnixMillis(1'000'000'000'123),
          "alice",
          "submitter",
          "ipv4:10.0.0.7:51234",
          "CancelJob",
          object,
          "OK"};
}

std::string TextOf(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

std::unique_ptr<AuditLog> OpenOrDie(const std::string& path, int64_t max_bytes) {
  auto log = AuditLog::Open(path, max_bytes);
  EXPECT_TRUE(log.ok()) << log.status();
  return *std::move(log);
}

TEST(AuditLog, CallIsOneLineOfJson) {
  EXPECT_EQ(ToJsonLine(Record("tiny-k3x9q2")),
            "{\"time\":\"2001-09-09T01:46:40.123Z\",\"who\":\"alice\",\"role\":\"submitter\","
            "\"from\":\"ipv4:10.0.0.7:51234\",\"method\":\"CancelJob\",\"object\":\"tiny-k3x9q2\","
            "\"outcome\":\"OK\"}\n");
  AuditRecord revoked = Record("node-0");
  revoked.revoked_serial = "5a0c";
  EXPECT_THAT(ToJsonLine(revoked), HasSubstr("\"outcome\":\"OK\",\"revoked_serial\":\"5a0c\"}"));
  const std::string hostile = ToJsonLine(Record("a\nb\"c"));
  EXPECT_THAT(hostile, HasSubstr("\"a\\nb\\\"c\""));
  EXPECT_EQ(hostile.find('\n'), hostile.size() - 1) << "a caller cannot write lines of its own";
}

TEST(AuditLog, AppendsInOrderToExistingLines) {
  const TempDir dir;
  std::string expected;
  for (int round = 0; round < 2; ++round) {
    const auto log = OpenOrDie(dir.File("audit"), 1 << 20);
    for (int i = 0; i < 50; ++i) {
      log->Write(Record(std::to_string(i)));
      expected += ToJsonLine(Record(std::to_string(i)));
    }
  }
  EXPECT_EQ(TextOf(dir.File("audit")), expected);
}

TEST(AuditLog, UnauthenticatedCallsDoNotFillTheFile) {
  const TempDir dir;
  AuditRecord record = Record("");
  record.unauthenticated = true;
  record.outcome = "UNAUTHENTICATED";
  std::string expected = ToJsonLine(record);
  {
    const auto log = OpenOrDie(dir.File("audit"), 1 << 20);
    for (int i = 0; i < 1000; ++i) log->Write(record);
    log->Write(Record("of a user"));
    expected += ToJsonLine(Record("of a user"));
    record.time += absl::Minutes(1);
    log->Write(record);
  }
  record.left_out = 999;
  EXPECT_THAT(ToJsonLine(record), HasSubstr(",\"left_out\":999}"));
  EXPECT_EQ(TextOf(dir.File("audit")), expected + ToJsonLine(record));
}

TEST(AuditLog, RotatesFullFilesAndDeletesTheOldest) {
  const TempDir dir;
  const int64_t two_lines = 2 * static_cast<int64_t>(ToJsonLine(Record("00")).size());
  {
    const auto log = OpenOrDie(dir.File("audit"), two_lines);
    for (int i = 10; i < 10 + 2 * (kMaxAuditFiles + 3); ++i) log->Write(Record(std::to_string(i)));
  }
  EXPECT_EQ(TextOf(dir.File("audit")), ToJsonLine(Record("22")) + ToJsonLine(Record("23")));
  EXPECT_EQ(TextOf(dir.File("audit.1")), ToJsonLine(Record("20")) + ToJsonLine(Record("21")));
  EXPECT_EQ(TextOf(dir.File("audit.4")), ToJsonLine(Record("14")) + ToJsonLine(Record("15")));
  EXPECT_FALSE(std::filesystem::exists(dir.File("audit.5")));
}

TEST(AuditLog, FullDiskLosesAndCountsLines) {
  const auto log = OpenOrDie("/dev/full", 1 << 20);
  log->Write(Record("a"));
  log->Write(Record("b"));
  while (log->lost() < 2) std::this_thread::yield();
  EXPECT_EQ(log->lost(), 2);
}

TEST(AuditLog, ReportsMissingLinesOnceWritable) {
  const TempDir dir;
  const std::string line = ToJsonLine(Record("aa"));
  {
    // Its second line needs a new file, and the rotation fails: two directories are in the way.
    const auto log = OpenOrDie(dir.File("audit"), static_cast<int64_t>(line.size()));
    for (const char* name : {"audit.3", "audit.4"})
      std::filesystem::create_directories(dir.File(name) + "/full");
    log->Write(Record("aa"));
    log->Write(Record("bb"));
    while (log->lost() < 1) std::this_thread::yield();
    for (const char* name : {"audit.3", "audit.4"}) std::filesystem::remove_all(dir.File(name));
    log->Write(Record("cc"));
  }
  EXPECT_EQ(TextOf(dir.File("audit.1")), line);
  EXPECT_EQ(TextOf(dir.File("audit")), "{\"lost_lines\":1}\n" + ToJsonLine(Record("cc")));
}

// All later lines went into the unlinked file, and nothing was logged.
TEST(AuditLog, ReopensRemovedOrRenamedFile) {
  const TempDir dir;
  const std::string path = dir.File("audit");
  const auto log = OpenOrDie(path, 1 << 20);
  const auto write_and_await = [&](const std::string& object) {
    log->Write(Record(object));
    while (TextOf(path) != ToJsonLine(Record(object))) std::this_thread::yield();
  };
  write_and_await("a");
  std::filesystem::remove(path);
  write_and_await("b");
  std::filesystem::rename(path, dir.File("rotated"));
  write_and_await("c");
  EXPECT_EQ(TextOf(dir.File("rotated")), ToJsonLine(Record("b")));
  std::filesystem::rename(path, dir.File("rotated"));
  std::filesystem::create_directory(path);
  log->Write(Record("d"));
  while (log->lost() < 1) std::this_thread::yield();
  std::filesystem::remove(path);
  log->Write(Record("e"));
  const std::string expected = "{\"lost_lines\":1}\n" + ToJsonLine(Record("e"));
  while (TextOf(path) != expected) std::this_thread::yield();
  EXPECT_EQ(log->lost(), 1);
}

// The coordinator waited for a reader forever, at its start or when it had to stop.
TEST(AuditLog, FifoWithoutReaderIsErrorAtStartAndLosesLinesLater) {
  const TempDir dir;
  const std::string path = dir.File("audit");
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  EXPECT_THAT(std::string(AuditLog::Open(path, 1 << 20).status().message()), HasSubstr("No such device"));
  std::filesystem::remove(path);
  const auto log = OpenOrDie(path, 1 << 20);
  std::filesystem::remove(path);
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  log->Write(Record("a"));
  while (log->lost() < 1) std::this_thread::yield();
}

// SIGTERM did not end the coordinator.
TEST(AuditLog, HangingDiskDoesNotBlockShutdown) {
  const TempDir dir;
  auto log = OpenOrDie(dir.File("audit"), 1 << 20);
  disk_is_reached = false;
  disk_hangs = true;
  log->Write(Record("a"));
  while (!disk_is_reached) std::this_thread::yield();
  log->Write(Record("b"));
  ::testing::internal::CaptureStderr();
  log.reset();
  const std::string captured = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(captured, HasSubstr("audit log did not respond during shutdown"));
  EXPECT_THAT(captured, HasSubstr("pending_lines=2"));
  disk_hangs = false;
  while (TextOf(dir.File("audit")) != ToJsonLine(Record("a")) + ToJsonLine(Record("b")))
    std::this_thread::yield();
}

TEST(AuditLog, RejectsFileThatCannotBeCreated) {
  const TempDir dir;
  const auto log = AuditLog::Open(dir.File("none") + "/audit", 1 << 20);
  EXPECT_THAT(std::string(log.status().message()), HasSubstr("No such file"));
}

}  // namespace
}  // namespace fsdpd
