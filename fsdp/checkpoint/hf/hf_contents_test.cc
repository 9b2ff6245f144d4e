// Directories written by fsdpd, with every kind of damage that is detectable without checksums. tests/parity
// covers those of transformers.
#include "fsdp/checkpoint/hf/hf_contents.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_replace.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "base/temp_dir.h"
#include "fsdp/checkpoint/hf/hf_store.h"
#include "fsdp/checkpoint/testing/small_checkpoint.h"

namespace fsdpd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::StartsWith;

class HfContentsTest : public ::testing::Test {
 protected:
  // Three files: model.w; model.b; everything else.
  HfContentsTest() {
    std::vector<StoredTensor> stored;
    const std::vector<TestTensor> tensors = SmallTensors();
    for (const TestTensor& tensor : tensors) {
      stored.push_back({tensor.name, tensor.type, tensor.shape, static_cast<int64_t>(tensor.numbers.size())});
    }
    const auto writer = MakeHfWriter(dir_.path(), stored, 170, "{}");
    EXPECT_TRUE(writer.ok()) << writer.status();
    for (size_t i = 0; i < tensors.size(); ++i) {
      EXPECT_TRUE((*writer)->Write(i, tensors[i].numbers.data()).ok());
    }
    EXPECT_TRUE((*writer)->Finish().ok());
  }

  HfContents Load() {
    absl::StatusOr<HfContents> contents = LoadHfContents(dir_.path());
    EXPECT_TRUE(contents.ok()) << contents.status();
    return contents.ok() ? *std::move(contents) : HfContents();
  }

  std::vector<std::string> Faults() {
    std::vector<std::string> violations;
    const HfContents contents = Load();
    for (const DcpViolation& violation : contents.violations)
      violations.push_back(absl::StrCat(violation.where, ": ", violation.what));
    EXPECT_EQ(contents.first.ok(), violations.empty());
    EXPECT_EQ(OpenHfDirectory(dir_.path()).ok(), violations.empty()) << "a reader wants it whole";
    return violations;
  }

  void Replace(const std::string& name, const std::string& from, const std::string& to) {
    const std::string before = ReadFileOf(dir_.File(name));
    const std::string after = absl::StrReplaceAll(before, {{from, to}});
    EXPECT_NE(before, after);
    WriteFileOf(dir_.File(name), after);
  }

  static std::string Part(int number) { return absl::StrCat("model-0000", number, "-of-00003.safetensors"); }

  TempDir dir_;
};

TEST_F(HfContentsTest, LocatesEachTensor) {
  EXPECT_THAT(Faults(), IsEmpty());
  const HfContents contents = Load();
  ASSERT_THAT(contents.files, SizeIs(3));
  ASSERT_THAT(contents.tensors, SizeIs(5));
  EXPECT_EQ(contents.tensors[0].entry.name, "model.b");
  EXPECT_EQ(contents.tensors[0].entry.type_name, "BF16");
  EXPECT_EQ(contents.files[contents.tensors[0].file].name, Part(1));
}

TEST_F(HfContentsTest, ReportsAllViolationsOfAllFiles) {
  std::filesystem::remove(dir_.File(Part(1)));
  Replace(Part(2), "I64", "I32");
  std::filesystem::resize_file(dir_.File(Part(3)), std::filesystem::file_size(dir_.File(Part(3))) - 1);
  Replace(kHfIndexName, absl::StrCat("\"none\": \"", Part(3), "\""), "\"none\": \"../x\"");
  EXPECT_THAT(Faults(),
              ElementsAre(absl::StrCat(kHfIndexName, ": none has an invalid file name"),
                          Part(1) + ": open: No such file or directory",
                          Part(2) + ": model.c: has 192 bytes, which do not match [2, 3, 4] of type int32",
                          StartsWith(Part(3) + ": step: data ends at byte 4 "),
                          StartsWith(Part(3) + ": none: data ends at byte 4 ")));
}

TEST_F(HfContentsTest, ReportsTensorInTwoFiles) {
  WriteFileOf(dir_.File(Part(3)), ReadFileOf(dir_.File(Part(2))));
  EXPECT_THAT(Faults(), ElementsAre(absl::StrCat(Part(3), ": model.c: is also in ", Part(2)),
                                    Part(3) + ": lacks none, which the index lists",
                                    Part(3) + ": lacks step, which the index lists"));
}

TEST_F(HfContentsTest, AllowsTensorsMissingFromIndex) {
  Replace(kHfIndexName, absl::StrCat("    \"none\": \"", Part(3), "\",\n"), "");
  EXPECT_THAT(Faults(), IsEmpty());
  EXPECT_THAT(Load().tensors, SizeIs(5));
}

TEST_F(HfContentsTest, RejectsInvalidIndex) {
  WriteFileOf(dir_.File(kHfIndexName), "{}");
  EXPECT_THAT(Faults(), ElementsAre(absl::StrCat(kHfIndexName, ": has no weight_map")));
  WriteFileOf(dir_.File(kHfIndexName), R"({"weight_map": {"a": "x", "a": "y"}})");
  EXPECT_THAT(Faults(), ElementsAre(HasSubstr("duplicate key")));
}

TEST_F(HfContentsTest, ReadingAllReportsTruncatedFile) {
  HfContents contents = Load();
  ASSERT_TRUE(ReadAllOf(&contents, 2, [] { return false; }).ok());
  EXPECT_THAT(contents.violations, IsEmpty());
  std::filesystem::resize_file(dir_.File(Part(2)), 100);
  ASSERT_TRUE(ReadAllOf(&contents, 2, [] { return false; }).ok());
  ASSERT_THAT(contents.violations, SizeIs(1));
  EXPECT_EQ(contents.violations[0].where, Part(2));
  EXPECT_THAT(contents.violations[0].what,
              StartsWith("file was truncated while it was read (ends at byte 100, "));
  EXPECT_TRUE(absl::IsDataLoss(contents.first));
  EXPECT_TRUE(absl::IsCancelled(ReadAllOf(&contents, 2, [] { return true; })));
}

TEST_F(HfContentsTest, EmptyDirectoryIsNotFound) {
  TempDir empty;
  EXPECT_TRUE(absl::IsNotFound(LoadHfContents(empty.path()).status()));
}

}  // namespace
}  // namespace fsdpd
