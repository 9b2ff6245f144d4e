#include "fsdp/checkpoint/dcp/dcp_writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include <filesystem>

#include "base/temp_dir.h"
#include "fsdp/checkpoint/dcp/dcp_metadata.h"
#include "fsdp/checkpoint/testing/small_checkpoint.h"

namespace fsdpd {
namespace {

using ::testing::HasSubstr;

TEST(DcpWriter, RoundTripsAnyPartition) {
  for (const int cuts : {1, 2, 3, 5, 13}) {
    TempDir dir;
    const WrittenFiles written = WriteTestFiles(dir.path(), SmallTensors(), cuts);
    EXPECT_TRUE(absl::IsNotFound(ReadBack(dir.path(), SmallTensors()))) << "no checkpoint before the commit";
    ASSERT_TRUE(CommitTestFiles(dir.path(), written).ok());
    const absl::Status status = ReadBack(dir.path(), SmallTensors());
    EXPECT_TRUE(status.ok()) << status;
  }
}

TEST(DcpWriter, WritesLargePiecesInStretches) {
  TempDir dir;
  const std::vector<TestTensor> tensors = {MakeTestTensor("large", "float32", {1000, 1111})};
  ASSERT_TRUE(CommitTestFiles(dir.path(), WriteTestFiles(dir.path(), tensors, 2)).ok());
  const absl::Status status = ReadBack(dir.path(), tensors);
  EXPECT_TRUE(status.ok()) << status;
}

TEST(DcpWriter, MetadataRestoresIndex) {
  TempDir dir;
  const WrittenFiles written = WriteTestFiles(dir.path(), SmallTensors(), 3);
  const absl::StatusOr<DcpIndex> made = IndexOf({&written.files[0], &written.files[1], &written.files[2]});
  const absl::StatusOr<DcpIndex> read = ReadMetadata(MetadataOf(*made));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->files, made->files);
  EXPECT_EQ(read->values[0].place, made->values[0].place);
  for (const DcpTensor& tensor : read->tensors) {
    const auto of_name = [&](const DcpTensor& other) { return other.name == tensor.name; };
    const DcpTensor& other = *std::find_if(made->tensors.begin(), made->tensors.end(), of_name);
    EXPECT_EQ(tensor.type, other.type);
    EXPECT_EQ(tensor.shape, other.shape);
    ASSERT_EQ(tensor.chunks.size(), other.chunks.size());
    for (size_t i = 0; i < tensor.chunks.size(); ++i) {
      EXPECT_EQ(tensor.chunks[i].at.offsets, other.chunks[i].at.offsets);
      EXPECT_EQ(tensor.chunks[i].at.sizes, other.chunks[i].at.sizes);
      EXPECT_EQ(tensor.chunks[i].place, other.chunks[i].place);
    }
  }
}

TEST(DcpWriter, ReplacesFilesOfEarlierAttempt) {
  TempDir dir;
  WriteTestFiles(dir.path(), SmallTensors(), 5);  // Never committed.
  const std::string old_file = dir.File("__1_0.distcp");
  std::filesystem::create_hard_link(old_file, dir.File("held by the process before"));
  const std::string old_bytes = ReadFileOf(old_file);
  ASSERT_TRUE(CommitTestFiles(dir.path(), WriteTestFiles(dir.path(), SmallTensors(), 2)).ok());
  EXPECT_TRUE(ReadBack(dir.path(), SmallTensors()).ok());
  EXPECT_EQ(ReadFileOf(dir.File("held by the process before")), old_bytes) << "another file took its name";
  for (const int rank : {2, 3, 4}) {
    EXPECT_FALSE(std::filesystem::exists(dir.File(DcpFileName(rank, 0)))) << "of no rank that wrote this one";
  }
}

TEST(DcpWriter, RenamesFileWhenComplete) {
  TempDir dir;
  const TestTensor tensor = MakeTestTensor("w", "float32", {9});
  const DcpFile layout = LayOut("__0_0.distcp", PiecesOfRun("w", tensor.type, {9}, 0, 9));
  const auto before = DcpWriter::Create(dir.path(), layout);  // A late process of an earlier attempt.
  ASSERT_TRUE(before.ok()) << before.status();
  const auto writer = DcpWriter::Create(dir.path(), layout);
  ASSERT_TRUE((*before)->Write(0, tensor.numbers.data()).ok());
  EXPECT_TRUE(absl::IsNotFound((*before)->Finish().status()));
  ASSERT_TRUE((*writer)->Write(0, tensor.numbers.data()).ok());
  EXPECT_FALSE(std::filesystem::exists(dir.File("__0_0.distcp")));
  const absl::StatusOr<DcpSum> sum = (*writer)->Finish();
  ASSERT_TRUE(sum.ok()) << sum.status();
  ASSERT_TRUE(CommitDcp(dir.path(), {&layout}, {*sum}).ok());
  EXPECT_TRUE(ReadBack(dir.path(), {tensor}).ok());
  // Only the file, .metadata and the checksums.
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(dir.path()), {}), 3);
}

TEST(DcpWriter, RejectsCommittedCheckpoint) {
  TempDir dir;
  const WrittenFiles written = WriteTestFiles(dir.path(), SmallTensors(), 1);
  ASSERT_TRUE(CommitTestFiles(dir.path(), written).ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(CommitTestFiles(dir.path(), written)));
  EXPECT_TRUE(absl::IsFailedPrecondition(DcpWriter::Create(dir.path(), written.files[0]).status()));
  EXPECT_TRUE(ReadBack(dir.path(), SmallTensors()).ok());
}

TEST(DcpWriter, RejectsIncompleteCommit) {
  TempDir dir;
  WrittenFiles written = WriteTestFiles(dir.path(), SmallTensors(), 3);
  const auto commit = [&](const std::vector<const DcpFile*>& files, const std::vector<DcpSum>& sums) {
    const absl::Status status = CommitDcp(dir.path(), files, sums);
    EXPECT_FALSE(std::filesystem::exists(dir.File(kDcpMetadataName)));
    return status;
  };
  const absl::Status hole =
      commit({&written.files[0], &written.files[2]}, {written.sums[0], written.sums[2]});
  EXPECT_TRUE(absl::IsFailedPrecondition(hole));
  EXPECT_THAT(std::string(hole.message()), HasSubstr("model.w: is incomplete"));
  // A rank with the layout of another model.
  DcpFile other = LayOut("__9_0.distcp", {{"model.w", FindTensorType("float32"), {5, 8}, {{0, 0}, {5, 8}}}});
  EXPECT_THAT(std::string(commit({&written.files[0], &other}, {written.sums[0], {}}).message()),
              HasSubstr("float32 [5, 7] in one file and float32 [5, 8] in another"));
  // A file that is shorter than reported, and one that is missing.
  std::filesystem::resize_file(dir.File("__1_0.distcp"), 100);
  EXPECT_TRUE(absl::IsDataLoss(CommitTestFiles(dir.path(), written)));
  std::filesystem::remove(dir.File("__1_0.distcp"));
  EXPECT_TRUE(absl::IsNotFound(CommitTestFiles(dir.path(), written)));
  EXPECT_FALSE(std::filesystem::exists(dir.File(kDcpMetadataName)));
}

TEST(DcpWriter, DetectsFullDiskBeforeWriting) {
  TempDir dir;
  const DcpFile layout =
      LayOut("__0_0.distcp", {{"w", FindTensorType("float32"), {100000}, {{0}, {100000}}}});
  signal(SIGXFSZ, SIG_IGN);
  rlimit before;
  getrlimit(RLIMIT_FSIZE, &before);
  rlimit small = before;
  small.rlim_cur = 4096;
  setrlimit(RLIMIT_FSIZE, &small);
  const absl::Status status = DcpWriter::Create(dir.path(), layout).status();
  setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("reserve"));
  EXPECT_TRUE(std::filesystem::is_empty(dir.path())) << "the part that could not be reserved is gone";
}

TEST(DcpWriter, UnfinishedFileFreesSpace) {
  TempDir dir;
  const DcpFile layout =
      LayOut("__0_0.distcp", {{"w", FindTensorType("float32"), {100000}, {{0}, {100000}}}});
  absl::StatusOr<std::unique_ptr<DcpWriter>> writer = DcpWriter::Create(dir.path(), layout);
  ASSERT_TRUE(writer.ok()) << writer.status();
  EXPECT_FALSE(std::filesystem::is_empty(dir.path()));
  writer->reset();
  EXPECT_TRUE(std::filesystem::is_empty(dir.path()));
}

// A process of an earlier attempt creates its file after the new attempt's, and finishes after the commit.
TEST(DcpWriter, LateFileDoesNotReplaceCommittedFile) {
  TempDir dir;
  const TestTensor tensor = MakeTestTensor("w", "float32", {9});
  const DcpFile layout = LayOut("__0_0.distcp", PiecesOfRun("w", tensor.type, {9}, 0, 9));
  const auto writer = DcpWriter::Create(dir.path(), layout);
  ASSERT_TRUE((*writer)->Write(0, tensor.numbers.data()).ok());
  const absl::StatusOr<DcpSum> sum = (*writer)->Finish();
  ASSERT_TRUE(sum.ok()) << sum.status();
  const auto late = DcpWriter::Create(dir.path(), layout);
  ASSERT_TRUE(late.ok()) << late.status();
  ASSERT_TRUE(CommitDcp(dir.path(), {&layout}, {*sum}).ok());
  const std::string others(tensor.numbers.size(), 'x');
  ASSERT_TRUE((*late)->Write(0, others.data()).ok());
  EXPECT_TRUE(absl::IsFailedPrecondition((*late)->Finish().status()));
  const absl::Status status = ReadBack(dir.path(), {tensor});
  EXPECT_TRUE(status.ok()) << status;
}

// Only "not found" means not committed.
TEST(DcpWriter, RejectsUnreadableDirectory) {
  TempDir dir;
  const WrittenFiles written = WriteTestFiles(dir.path(), SmallTensors(), 1);
  std::filesystem::create_symlink(kDcpMetadataName,
                                  dir.File(kDcpMetadataName));  // A symbolic link to itself.
  const absl::Status created = DcpWriter::Create(dir.path(), written.files[0]).status();
  EXPECT_TRUE(absl::IsUnavailable(created)) << created;
  EXPECT_TRUE(absl::IsUnavailable(CommitTestFiles(dir.path(), written)));
}

}  // namespace
}  // namespace fsdpd
