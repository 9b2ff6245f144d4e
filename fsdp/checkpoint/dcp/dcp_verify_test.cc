#include "fsdp/checkpoint/dcp/dcp_verify.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <filesystem>
#include <fstream>
#include <random>

#include "base/seeds.h"
#include "base/temp_dir.h"
#include "fsdp/checkpoint/dcp/dcp_metadata.h"
#include "fsdp/checkpoint/testing/small_checkpoint.h"

namespace fsdpd {
namespace {

using ::testing::HasSubstr;

class DcpVerifyTest : public ::testing::Test {
 protected:
  DcpVerifyTest() {
    EXPECT_TRUE(CommitTestFiles(dir_.path(), WriteTestFiles(dir_.path(), SmallTensors(), 2)).ok());
  }

  // Whether replacing this file's content is reported. Reads must return correct data or an error in any
  // case.
  bool Told(const std::string& file, const std::string& bytes) {
    const std::string path = dir_.File(file);
    const std::string good = ReadFileOf(path);
    WriteFileOf(path, bytes);
    const absl::StatusOr<DcpVerdict> verdict = VerifyDcp(dir_.path(), 1);
    ReadBack(dir_.path(), SmallTensors()).IgnoreError();  // Wrong data fails an expectation.
    WriteFileOf(path, good);
    return !verdict.ok() || !verdict->violations.empty();
  }

  TempDir dir_;
  std::mt19937 random_{1};
};

TEST_F(DcpVerifyTest, AcceptsIntactCheckpoint) {
  const absl::StatusOr<DcpVerdict> verdict = VerifyDcp(dir_.path(), 3);
  ASSERT_TRUE(verdict.ok()) << verdict.status();
  EXPECT_TRUE(verdict->violations.empty()) << verdict->violations[0].where << verdict->violations[0].what;
  EXPECT_EQ(verdict->unsummed_records, 0);
}

TEST_F(DcpVerifyTest, ReportsEveryFlippedByte) {
  for (const char* file : {kDcpMetadataName, kDcpSumsName, "__0_0.distcp", "__1_0.distcp"}) {
    const std::string good = ReadFileOf(dir_.File(file));
    ASSERT_GT(good.size(), 100u);
    for (int i = 0; i < Seeds(150); ++i) {
      const size_t at = random_() % good.size();
      std::string bad = good;
      bad[at] = static_cast<char>(bad[at] ^ (1 << random_() % 8));
      EXPECT_TRUE(Told(file, bad)) << file << ", byte " << at;
    }
  }
}

TEST_F(DcpVerifyTest, ReportsEveryTruncatedFile) {
  for (const char* file : {kDcpMetadataName, kDcpSumsName, "__0_0.distcp", "__1_0.distcp"}) {
    const std::string good = ReadFileOf(dir_.File(file));
    for (int i = 0; i < Seeds(30); ++i) {
      const size_t size = random_() % good.size();
      EXPECT_TRUE(Told(file, good.substr(0, size))) << file << ", " << size << " bytes";
      // Full length, but the end was never written.
      std::string zeros = good;
      std::fill(zeros.begin() + static_cast<int64_t>(size), zeros.end(), '\0');
      EXPECT_TRUE(zeros == good || Told(file, zeros)) << file << ", zeros from byte " << size;
    }
  }
}

// Several threads read it in parts.
TEST(DcpVerify, ComparesFilesLongerThanAStretch) {
  const TempDir dir;
  constexpr int64_t kNumbers = (70 << 20) / sizeof(float);
  CommitTestFiles(dir.path(), WriteTestFiles(dir.path(), {MakeTestTensor("long", "float32", {kNumbers})}, 1))
      .IgnoreError();
  const absl::StatusOr<DcpVerdict> whole = VerifyDcp(dir.path(), 4);
  ASSERT_TRUE(whole.ok()) << whole.status();
  EXPECT_TRUE(whole->violations.empty());
  const std::string path = dir.File("__0_0.distcp");
  for (const int64_t at : {int64_t{1} << 20, (int64_t{64} << 20) - 1, int64_t{64} << 20, int64_t{69} << 20}) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    const auto byte = static_cast<char>(file.seekg(at).get());
    file.seekp(at).put(static_cast<char>(byte ^ 1)).flush();
    const absl::StatusOr<DcpVerdict> verdict = VerifyDcp(dir.path(), 4);
    ASSERT_TRUE(verdict.ok()) << verdict.status();
    ASSERT_FALSE(verdict->violations.empty()) << at;
    EXPECT_EQ(verdict->violations[0].where, "__0_0.distcp") << at;
    file.seekp(at).put(byte).flush();
  }
  EXPECT_TRUE(VerifyDcp(dir.path(), 3)->violations.empty());
}

// Like a checkpoint written by torch, without our checksums.
TEST_F(DcpVerifyTest, RecordChecksumsNameDamagedTensor) {
  std::filesystem::remove(dir_.File(kDcpSumsName));
  EXPECT_TRUE(VerifyDcp(dir_.path(), 1)->violations.empty());
  const absl::StatusOr<DcpContents> contents = LoadContents(dir_.path());
  for (const DcpTensor& tensor : contents->index.tensors) {
    for (const DcpChunk& chunk : tensor.chunks) {
      if (IsEmpty(chunk.at)) continue;
      const std::string path = dir_.File(contents->index.files[chunk.place.file]);
      const std::string good = ReadFileOf(path);
      std::string bad = good;
      // The first record data that is too long to be a name.
      const size_t data = bad.find("data/0FB", chunk.place.begin);
      ASSERT_NE(data, std::string::npos);
      const auto number =
          static_cast<size_t>(chunk.place.begin) + (data - chunk.place.begin + 10 + 63) / 64 * 64;
      bad[number] = static_cast<char>(bad[number] ^ 1);
      WriteFileOf(path, bad);
      const absl::StatusOr<DcpVerdict> verdict = VerifyDcp(dir_.path(), 1);
      ASSERT_EQ(verdict->violations.size(), 1u);
      EXPECT_EQ(verdict->violations[0].where, tensor.name);
      EXPECT_THAT(verdict->violations[0].what, HasSubstr("archive/data/0 does not match its checksum"));
      EXPECT_TRUE(absl::IsDataLoss(ReadBack(dir_.path(), SmallTensors())));
      WriteFileOf(path, good);
    }
  }
}

TEST_F(DcpVerifyTest, DamageWithoutSumsNeverYieldsWrongNumbers) {
  std::filesystem::remove(dir_.File(kDcpSumsName));
  for (const char* file : {kDcpMetadataName, "__0_0.distcp", "__1_0.distcp"}) {
    const std::string good = ReadFileOf(dir_.File(file));
    for (int i = 0; i < Seeds(150); ++i) {
      const size_t at = random_() % good.size();
      std::string bad = good;
      bad[at] = static_cast<char>(bad[at] ^ (1 << random_() % 8));
      Told(file, bad);
    }
  }
}

TEST_F(DcpVerifyTest, ReportsAllViolations) {
  std::filesystem::remove(dir_.File("__0_0.distcp"));
  std::filesystem::resize_file(dir_.File("__1_0.distcp"), 700);
  const absl::StatusOr<DcpVerdict> verdict = VerifyDcp(dir_.path(), 2);
  ASSERT_TRUE(verdict.ok()) << verdict.status();
  std::vector<std::string> where;
  for (const DcpViolation& violation : verdict->violations) where.push_back(violation.where);
  EXPECT_THAT(where, ::testing::IsSupersetOf({"__0_0.distcp", "__1_0.distcp", "model.w", "model.c"}));
}

// A hostile index could refer to one large record a million times.
TEST_F(DcpVerifyTest, ReadsSharedRecordOnce) {
  std::filesystem::remove(dir_.File(kDcpSumsName));
  DcpIndex index = LoadContents(dir_.path())->index;
  const DcpValue value = index.values[0];
  for (const char* name : {"second", "third"}) index.values.push_back({name, value.place});
  WriteFileOf(dir_.File(kDcpMetadataName), MetadataOf(index));
  const std::string path = dir_.File(index.files[value.place.file]);
  std::string bytes = ReadFileOf(path);
  const size_t number = bytes.find("K\x07.", value.place.begin);
  ASSERT_NE(number, std::string::npos);
  bytes[number + 1] = 8;
  WriteFileOf(path, bytes);
  const absl::StatusOr<DcpVerdict> verdict = VerifyDcp(dir_.path(), 1);
  ASSERT_TRUE(verdict.ok()) << verdict.status();
  std::vector<std::string> what;
  for (const DcpViolation& violation : verdict->violations) what.push_back(violation.what);
  EXPECT_THAT(what, ::testing::UnorderedElementsAre(HasSubstr("overlaps"), HasSubstr("overlaps"),
                                                    HasSubstr("does not match its checksum")));
}

// Like torch with set_crc32_options(False).
TEST_F(DcpVerifyTest, CountsRecordsWithoutChecksums) {
  std::filesystem::remove(dir_.File(kDcpSumsName));
  for (const char* file : {"__0_0.distcp", "__1_0.distcp"}) {
    std::string bytes = ReadFileOf(dir_.File(file));
    for (const auto& [mark, sum] : {std::make_pair("PK\x01\x02", 16), std::make_pair("PK\x07\x08", 4)}) {
      for (size_t at = bytes.find(mark); at != std::string::npos; at = bytes.find(mark, at + 1)) {
        bytes.replace(at + sum, 4, 4, '\0');
      }
    }
    WriteFileOf(dir_.File(file), bytes);
  }
  const absl::StatusOr<DcpVerdict> verdict = VerifyDcp(dir_.path(), 2);
  ASSERT_TRUE(verdict.ok()) << verdict.status();
  EXPECT_TRUE(verdict->violations.empty()) << verdict->violations[0].where << verdict->violations[0].what;
  int64_t records = 1;  // Including the value.
  for (const DcpTensor& tensor : verdict->contents.index.tensors) {
    for (const DcpChunk& chunk : tensor.chunks) records += IsEmpty(chunk.at) ? 0 : 1;
  }
  EXPECT_EQ(verdict->unsummed_records, records);
  const absl::Status status = ReadBack(dir_.path(), SmallTensors());
  EXPECT_TRUE(status.ok()) << status;
}

TEST_F(DcpVerifyTest, OpenFileLimitIsNotAViolation) {
  rlimit before;
  getrlimit(RLIMIT_NOFILE, &before);
  rlimit none = before;
  none.rlim_cur = 0;
  // Called after the contents are loaded and before a file is read.
  const absl::Status status = VerifyDcp(dir_.path(), 1, [&] {
                                setrlimit(RLIMIT_NOFILE, &none);
                                return false;
                              }).status();
  setrlimit(RLIMIT_NOFILE, &before);
  EXPECT_TRUE(absl::IsInternal(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("Too many open files"));
}

TEST_F(DcpVerifyTest, StopsOnCancellation) {
  EXPECT_TRUE(absl::IsCancelled(VerifyDcp(dir_.path(), 2, [] { return true; }).status()));
}

}  // namespace
}  // namespace fsdpd
