// Directories written by fsdpd, intact and damaged. tests/parity covers those of transformers.
#include "fsdp/checkpoint/hf/hf_store.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_replace.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "base/temp_dir.h"
#include "fsdp/checkpoint/testing/small_checkpoint.h"

namespace fsdpd {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

class HfStoreTest : public ::testing::Test {
 protected:
  void Write(int64_t file_bytes) {
    std::vector<StoredTensor> stored;
    for (const TestTensor& tensor : tensors_) {
      stored.push_back({tensor.name, tensor.type, tensor.shape, static_cast<int64_t>(tensor.numbers.size())});
    }
    const auto writer = MakeHfWriter(dir_.path(), stored, file_bytes, "{}\n");
    ASSERT_TRUE(writer.ok()) << writer.status();
    for (size_t i = 0; i < tensors_.size(); ++i) {
      ASSERT_TRUE((*writer)->Write(i, tensors_[i].numbers.data()).ok());
    }
    ASSERT_TRUE((*writer)->Finish().ok());
  }

  std::string ErrorOf() {
    const auto reader = OpenHfDirectory(dir_.path());
    EXPECT_TRUE(absl::IsDataLoss(reader.status())) << reader.status();
    return std::string(reader.status().message());
  }

  void Replace(const std::string& name, const std::string& from, const std::string& to) {
    WriteFileOf(dir_.File(name), absl::StrReplaceAll(ReadFileOf(dir_.File(name)), {{from, to}}));
  }

  TempDir dir_;
  const std::vector<TestTensor> tensors_ = SmallTensors();
  const std::string index_ = "model.safetensors.index.json", first_ = "model-00001-of-00003.safetensors";
};

TEST_F(HfStoreTest, RoundTripsTensors) {
  for (const int64_t file_bytes : {1000, 100, 1}) {
    SCOPED_TRACE(file_bytes);
    for (const auto& entry : std::filesystem::directory_iterator(dir_.path())) std::filesystem::remove(entry);
    Write(file_bytes);
    EXPECT_EQ(std::filesystem::exists(dir_.File(index_)), file_bytes < 1000);
    EXPECT_EQ(ReadFileOf(dir_.File("config.json")), "{}\n");
    const auto reader = OpenHfDirectory(dir_.path());
    ASSERT_TRUE(reader.ok()) << reader.status();
    ASSERT_EQ((*reader)->tensors().size(), tensors_.size());
    for (const TestTensor& tensor : tensors_) {
      const int64_t found = (*reader)->Find(tensor.name);
      ASSERT_GE(found, 0) << tensor.name;
      EXPECT_EQ((*reader)->tensors()[found].type, tensor.type);
      EXPECT_EQ((*reader)->tensors()[found].shape, tensor.shape);
      std::string numbers(tensor.numbers.size(), '\0');
      ASSERT_TRUE((*reader)->Read(found, numbers.data()).ok());
      EXPECT_EQ(numbers, tensor.numbers) << tensor.name;
    }
    EXPECT_EQ((*reader)->Find("absent"), -1);
  }
}

TEST_F(HfStoreTest, RejectsIndexWithMissingEntries) {
  Write(170);
  ASSERT_TRUE(std::filesystem::exists(dir_.File(first_)));
  Replace(index_, "model.w", "model.v");
  EXPECT_THAT(ErrorOf(), HasSubstr("lacks model.v, which the index lists"));
  Replace(index_, "model.v", "model\\n.v");
  EXPECT_THAT(ErrorOf(), HasSubstr("lacks model\\n.v, which the index lists"));
  Replace(index_, first_, "../" + first_);
  EXPECT_THAT(ErrorOf(), HasSubstr("has an invalid file name"));
  WriteFileOf(dir_.File(index_), "{}");
  EXPECT_THAT(ErrorOf(), HasSubstr("has no weight_map"));
  WriteFileOf(dir_.File(index_), "[");
  EXPECT_THAT(ErrorOf(), HasSubstr("JSON, byte "));
}

TEST_F(HfStoreTest, RejectsTensorInTwoFiles) {
  Write(170);
  WriteFileOf(dir_.File("model-00002-of-00003.safetensors"), ReadFileOf(dir_.File(first_)));
  EXPECT_THAT(ErrorOf(), HasSubstr("is also in "));
}

TEST_F(HfStoreTest, RejectsTruncatedFile) {
  Write(1000);
  const std::string bytes = ReadFileOf(dir_.File("model.safetensors"));
  WriteFileOf(dir_.File("model.safetensors"), bytes.substr(0, bytes.size() - 1));
  EXPECT_THAT(ErrorOf(), HasSubstr("model.safetensors: step: data ends at byte "));
  WriteFileOf(dir_.File("model.safetensors"),
              absl::StrReplaceAll(bytes.substr(0, bytes.size() - 1), {{"\"step\"", "\"s\\np\""}}));
  EXPECT_THAT(ErrorOf(), HasSubstr("model.safetensors: s\\np: data ends at byte "));
}

// Size and header are equal for all training runs of a model.
TEST_F(HfStoreTest, TraitsDependOnNumbersOnly) {
  Write(170);
  const auto traits = [this] {
    const auto reader = OpenHfDirectory(dir_.path());
    EXPECT_TRUE(reader.ok()) << reader.status();
    return *(*reader)->Traits();
  };
  const std::vector<std::string> before = traits();
  EXPECT_THAT(before,
              Contains(absl::StrCat(first_, ": size = ", std::filesystem::file_size(dir_.File(first_)))));
  std::filesystem::copy(dir_.File(first_), dir_.File("copy"));
  std::filesystem::rename(dir_.File("copy"), dir_.File(first_));
  EXPECT_EQ(traits(), before);
  for (const bool head : {false, true}) {
    std::string bytes = ReadFileOf(dir_.File(first_));
    if (head) bytes = absl::StrReplaceAll(bytes, {{"\"pt\"", "\"tp\""}});
    if (!head) bytes.back() = static_cast<char>(bytes.back() ^ 1);
    WriteFileOf(dir_.File(first_), bytes);
    const std::vector<std::string> after = traits();
    ASSERT_EQ(after.size(), before.size());
    EXPECT_NE(after, before) << head;
  }
}

TEST_F(HfStoreTest, SamplesSpanWholeFile) {
  const TensorType* type = FindTensorType("uint8");
  const auto writer = MakeHfWriter(dir_.path(), {{"w", type, {100'003}, 100'003}}, 1 << 20, "{}");
  ASSERT_TRUE(writer.ok()) << writer.status();
  ASSERT_TRUE((*writer)->Write(0, std::string(100'003, 'x').data()).ok());
  ASSERT_TRUE((*writer)->Finish().ok());
  const auto reader = OpenHfDirectory(dir_.path());
  ASSERT_TRUE(reader.ok()) << reader.status();
  const std::vector<std::string> traits = *(*reader)->Traits();
  const auto size = static_cast<int64_t>(std::filesystem::file_size(dir_.File("model.safetensors")));
  EXPECT_EQ(traits.size(), 10u) << "its size, its head and eight blocks";
  EXPECT_THAT(traits[2], HasSubstr(absl::StrCat("bytes ", size - 100'003, " to ")));
  EXPECT_THAT(traits[9], HasSubstr(absl::StrCat(" to ", size - 1, " = ")));
}

TEST_F(HfStoreTest, DetectsModifiedFile) {
  Write(170);
  const auto reader = OpenHfDirectory(dir_.path());
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_TRUE((*reader)->CheckUnchanged().ok());
  std::filesystem::copy(dir_.File(first_), dir_.File("copy"));
  std::filesystem::rename(dir_.File("copy"), dir_.File(first_));
  const absl::Status replaced = (*reader)->CheckUnchanged();
  EXPECT_TRUE(absl::IsDataLoss(replaced)) << replaced;
  EXPECT_THAT(replaced.message(), HasSubstr(first_ + ": file was replaced while it was read (was inode "));
}

TEST_F(HfStoreTest, NamesUnsupportedWeightFormat) {
  EXPECT_TRUE(absl::IsNotFound(OpenHfDirectory(dir_.path()).status()));
  WriteFileOf(dir_.File("pytorch_model.bin"), "x");
  const auto reader = OpenHfDirectory(dir_.path());
  EXPECT_TRUE(absl::IsUnimplemented(reader.status())) << reader.status();
}

TEST_F(HfStoreTest, ExplainsPeftDirectoriesThatCannotBeRead) {
  EXPECT_EQ(PeftProblem(dir_.path()), "");
  for (const char* name : {"b", "a"}) {
    std::filesystem::create_directory(dir_.File(name));
    WriteFileOf(dir_.File(absl::StrCat(name, "/adapter_config.json")), "{}");
  }
  EXPECT_EQ(PeftProblem(dir_.path()),
            absl::StrCat("adapters are in subdirectories (a, b); name one of them, ", dir_.path(), "/a"));
  WriteFileOf(dir_.File("adapter_config.json"), "{}");
  WriteFileOf(dir_.File("adapter_model.bin"), "x");
  const auto pickled = OpenPeftDirectory(dir_.path());
  EXPECT_EQ(pickled.status().message(), absl::StrCat(dir_.path(),
                                                     ": adapters are in adapter_model.bin; save them with "
                                                     "safe_serialization=True of PEFT's save_pretrained()"));
  WriteFileOf(dir_.File("adapter_model.safetensors"), "x");
  EXPECT_EQ(PeftProblem(dir_.path()), "");
}

}  // namespace
}  // namespace fsdpd
