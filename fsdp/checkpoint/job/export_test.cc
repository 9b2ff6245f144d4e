// Hugging Face exports of jobs. tests/parity shows that transformers computes the same with them.
#include "fsdp/checkpoint/job/export.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_replace.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <atomic>
#include <filesystem>

#include "base/temp_dir.h"
#include "fsdp/checkpoint/hf/hf_store.h"
#include "fsdp/checkpoint/job/job_directory.h"
#include "fsdp/checkpoint/names/job_keys.h"
#include "fsdp/checkpoint/names/tensor_names.h"
#include "fsdp/checkpoint/testing/small_checkpoint.h"
#include "fsdp/plan/spec/testing/small_models.h"

namespace fsdpd {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;

class ExportTest : public ::testing::Test {
 protected:
  ExportTest() {
    Gpt2Config gpt2 = SmallGpt2();
    gpt2.layers = 1;
    spec_.model = gpt2;
    spec_.steps = 7;
    spec_.checkpoint.dir = dir_.File("run");
    spec_.checkpoint.export_format = "hf";
    fs::create_directories(native_);
    std::vector<TestTensor> tensors;
    for (const NamedParam& param : ParamsOf(gpt2, Naming::kOurs)) {
      tensors.push_back(MakeTestTensor(MainKey(param.ours), "float32", param.shape));
      tensors.back().numbers.assign(tensors.back().numbers.size(), '\1');
    }
    EXPECT_TRUE(CommitTestFiles(native_, WriteTestFiles(native_, tensors, 2)).ok());
  }

  absl::StatusOr<int64_t> Export(const std::string& job, bool stopped = false) {
    return ExportJob(spec_, {job, 1, native_, [stopped] { return stopped; }, {}});
  }

  std::string TypeOfAll() {
    const auto reader = OpenHfDirectory(hf_);
    if (!reader.ok()) return std::string(reader.status().message());
    std::string type((*reader)->tensors()[0].type->name);
    for (const StoredTensor& tensor : (*reader)->tensors()) EXPECT_EQ(tensor.type->name, type) << tensor.name;
    return type;
  }

  std::string Read(const std::string& name) { return ReadFileOf(hf_ + "/" + name); }

  TempDir dir_;
  const std::string native_ = dir_.File("run/iter_0000007"), hf_ = dir_.File("run/hf");
  Spec spec_;
};

TEST_F(ExportTest, UsesComputeType) {
  const absl::StatusOr<int64_t> wide = Export("job-1");
  ASSERT_TRUE(wide.ok()) << wide.status();
  EXPECT_EQ(TypeOfAll(), "float32");
  EXPECT_THAT(Read("config.json"), HasSubstr("\"torch_dtype\": \"float32\""));
  EXPECT_THAT(Read("config.json"), HasSubstr("\"model_type\": \"gpt2\""));
  spec_.precision.compute = DType::kBf16;
  const absl::StatusOr<int64_t> narrow = Export("job-1");
  ASSERT_TRUE(narrow.ok()) << narrow.status();
  EXPECT_EQ(TypeOfAll(), "bfloat16");
  EXPECT_EQ(*wide, 2 * *narrow);
  spec_.precision.compute = DType::kFp16;  // Out of range for values that parameters may have reached.
  ASSERT_TRUE(Export("job-1").ok());
  EXPECT_EQ(TypeOfAll(), "float32");
  EXPECT_FALSE(fs::exists(hf_ + ".1.part"));
  EXPECT_FALSE(fs::exists(hf_ + ".replaced"));
}

TEST_F(ExportTest, WritesInitialDeviation) {
  spec_.initial.deviation = 0.05;
  ASSERT_TRUE(Export("job-1").ok());
  EXPECT_THAT(Read("config.json"), HasSubstr("\"initializer_range\": 0.05"));
}

TEST_F(ExportTest, KeepsOtherFieldsOfStartConfig) {
  fs::create_directories(dir_.File("start"));
  const std::string config =
      R"({"model_type": "gpt2", "n_embd": 8, "n_head": 2, "n_layer": 1, "n_positions": 16,
      "vocab_size": 32, "eos_token_id": 31, "dtype": "float16"})";
  WriteFileOf(dir_.File("start/config.json"), config);
  spec_.checkpoint.load = dir_.File("start");
  ASSERT_TRUE(Export("job-1").ok());
  EXPECT_THAT(Read("config.json"), HasSubstr("\"eos_token_id\": 31"));
  EXPECT_THAT(Read("config.json"), HasSubstr("\"dtype\": \"float32\""));
  // The config of another model is not used.
  std::get<Gpt2Config>(spec_.model).norm_epsilon = 1e-6;
  ASSERT_TRUE(Export("job-1").ok());
  EXPECT_THAT(Read("config.json"), Not(HasSubstr("eos_token_id")));
  EXPECT_THAT(Read("config.json"), HasSubstr("\"layer_norm_epsilon\": 1e-06"));
}

// A job that continues in the directory of an earlier one replaces its export.
TEST_F(ExportTest, ReplacesOnlyExportsOfJobs) {
  ASSERT_TRUE(Export("job-1").ok());
  for (const char* job : {"job-1", "job-2", ""}) {
    WriteFileOf(hf_ + "/left.txt", "of the one before");
    WriteFileOf(hf_ + "/model-00001-of-00002.safetensors", "of the one before");
    const absl::StatusOr<int64_t> exported = Export(job);
    ASSERT_TRUE(exported.ok()) << exported.status();
    EXPECT_FALSE(fs::exists(hf_ + "/left.txt"));
    EXPECT_FALSE(fs::exists(hf_ + "/model-00001-of-00002.safetensors"));
    EXPECT_THAT(Read("fsdpd.json"), HasSubstr(absl::StrCat("{\"job\": \"", job, "\"")));
  }
  fs::remove(hf_ + "/fsdpd.json");  // Like a directory that is not ours.
  EXPECT_TRUE(absl::IsAlreadyExists(Export("job-2").status()));
  EXPECT_EQ(TypeOfAll(), "float32");
}

TEST_F(ExportTest, MayReplaceStartDirectory) {
  ASSERT_TRUE(Export("job-1").ok());
  WriteFileOf(hf_ + "/config.json",
              absl::StrReplaceAll(Read("config.json"), {{"{", "{\n  \"eos_token_id\": 31,"}}));
  spec_.checkpoint.load = hf_;
  spec_.precision.compute = DType::kBf16;
  ASSERT_TRUE(Export("job-2").ok());
  EXPECT_EQ(TypeOfAll(), "bfloat16");
  EXPECT_THAT(Read("config.json"), HasSubstr("\"eos_token_id\": 31"));
}

// Rank 0 of attempt 1 is stopped and its node lost with its locks; it continues during or after the export of
// attempt 2.
TEST_F(ExportTest, LateRankOfEarlierAttemptChangesNothing) {
  for (const bool second_is_done : {false, true}) {
    fs::remove_all(hf_);
    struct stat before = {}, after = {};
    std::atomic<int> newest{1};
    const auto may_commit = [&newest](int attempt) {
      return attempt == newest ? absl::OkStatus() : absl::FailedPreconditionError("taken by a later attempt");
    };
    std::atomic<bool> asked{false};
    const auto second = [&] {  // Polled by the first export's threads.
      if (asked.exchange(true)) return false;
      newest = 2;
      EXPECT_EQ(*RemoveUnfinished(spec_.checkpoint.dir), 1) << "as attempt 2 does at its start";
      const auto stopped = [&] { return !second_is_done; };
      EXPECT_EQ(ExportJob(spec_, {"job-1", 2, native_, stopped, [&] { return may_commit(2); }}).ok(),
                second_is_done);
      EXPECT_EQ(stat(hf_.c_str(), &before) == 0, second_is_done);
      return false;
    };
    Spec narrow = spec_;
    narrow.precision.compute = DType::kBf16;  // To distinguish its numbers.
    const auto first = ExportJob(narrow, {"job-1", 1, native_, second, [&] { return may_commit(1); }});
    EXPECT_TRUE(asked);
    EXPECT_FALSE(first.ok()) << "it would have replaced what attempt 2 has made";
    EXPECT_EQ(stat(hf_.c_str(), &after) == 0, second_is_done);
    EXPECT_EQ(before.st_ino, after.st_ino);
    if (second_is_done) EXPECT_EQ(TypeOfAll(), "float32");
    // Starts its export only now.
    const auto later =
        ExportJob(narrow, {"job-1", 1, native_, [] { return false; }, [&] { return may_commit(1); }});
    EXPECT_EQ(later.status().message(), "taken by a later attempt");
    EXPECT_EQ(stat(hf_.c_str(), &after) == 0, second_is_done);
    EXPECT_EQ(before.st_ino, after.st_ino);
    EXPECT_FALSE(fs::exists(hf_ + ".1.part"));
  }
}

TEST_F(ExportTest, FailureKeepsPreviousExport) {
  ASSERT_TRUE(Export("job-1").ok());
  spec_.precision.compute = DType::kBf16;
  EXPECT_TRUE(absl::IsCancelled(Export("job-1", /*stopped=*/true).status()));
  EXPECT_EQ(TypeOfAll(), "float32");
  std::get<Gpt2Config>(spec_.model).layers = 2;
  const absl::Status lacks = Export("job-1").status();
  EXPECT_TRUE(absl::IsDataLoss(lacks)) << lacks;
  EXPECT_THAT(lacks.message(), HasSubstr("model.module.layer.1."));
  EXPECT_EQ(TypeOfAll(), "float32");
  EXPECT_FALSE(fs::exists(hf_ + ".1.part"));
}

}  // namespace
}  // namespace fsdpd
