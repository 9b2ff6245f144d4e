// Tests of `ckpt diff` across formats. ckpt_convert_test.cc compares checkpoints of one format.
#include <absl/strings/str_cat.h>
#include <absl/strings/str_replace.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <sstream>

#include "base/temp_dir.h"
#include "client/connect/outcome.h"
#include "client/testing/command_case.h"
#include "fsdp/checkpoint/convert/megatron_files.h"
#include "fsdp/checkpoint/hf/hf_store.h"
#include "fsdp/checkpoint/names/tensor_names.h"
#include "fsdp/checkpoint/testing/small_checkpoint.h"
#include "fsdp/plan/spec/testing/small_models.h"

namespace fsdpd {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr char kConfig[] = R"({"model_type": "llama", "hidden_size": 8, "intermediate_size": 12,
  "num_attention_heads": 2, "num_hidden_layers": 1, "vocab_size": 32})";

class CkptDiffTest : public CommandCase {
 protected:
  CkptDiffTest() {
    LlamaConfig llama = SmallLlama();
    llama.layers = 1;
    llama.kv_heads = llama.heads;
    std::vector<TestTensor> tensors;
    std::vector<StoredTensor> stored;
    for (const NamedParam& param : ParamsOf(llama, Naming::kTransformers)) {
      tensors.push_back(MakeTestTensor(param.theirs, "bfloat16", param.shape));
      stored.push_back({param.theirs, tensors.back().type, tensors.back().shape,
                        static_cast<int64_t>(tensors.back().numbers.size())});
    }
    std::filesystem::create_directory(hf_);
    const auto writer = MakeHfWriter(hf_, stored, 1 << 20, kConfig);
    EXPECT_TRUE(writer.ok()) << writer.status();
    for (size_t i = 0; i < tensors.size(); ++i)
      EXPECT_TRUE((*writer)->Write(i, tensors[i].numbers.data()).ok());
    EXPECT_TRUE((*writer)->Finish().ok());
    for (const auto& [directory, format] :
         {std::pair(native_, "fsdp_dtensor"), std::pair(dist_, "torch_dist")})
      EXPECT_EQ(Run({"convert", hf_, directory, "--to", format}), kExitOk) << err_;
  }

  int Run(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "ckpt");
    return RunCommand(arguments);
  }

  TempDir dir_;
  const std::string hf_ = dir_.File("hf"), native_ = dir_.File("native"), dist_ = dir_.File("dist");
};

TEST_F(CkptDiffTest, ComparesFormatsByParameter) {
  for (const auto& [first, second] :
       {std::pair(native_, hf_), std::pair(hf_, dist_), std::pair(native_, dist_)}) {
    EXPECT_EQ(Run({"diff", first, second}), kExitOk) << out_ << err_;
    EXPECT_EQ(out_, "equal: 12 parameters\n");
  }
}

TEST_F(CkptDiffTest, ComparesByNameWithoutModel) {
  std::filesystem::remove(hf_ + "/config.json");
  const std::string unknown = dir_.File("unknown");
  std::filesystem::create_directory(unknown);
  const TestTensor embedding = MakeTestTensor("model.module.embedding.weight", "bfloat16", {32, 8});
  ASSERT_TRUE(CommitTestFiles(unknown, WriteTestFiles(unknown, {embedding}, /*cuts=*/1)).ok());
  EXPECT_EQ(Run({"diff", hf_, unknown}), kExitDiffers);
  EXPECT_THAT(out_,
              AllOf(HasSubstr("model.module.embedding.weight"), HasSubstr("model.embed_tokens.weight")));
}

// A torch_dist checkpoint of Megatron-Core itself has no such entry.
TEST_F(CkptDiffTest, UsesModelFlag) {
  const std::string config = dir_.File("config.json"), spec = dir_.File("job.yaml");
  WriteFileOf(spec,
              "name: x\nmodel: {llama: {vocab_size: 32, hidden_size: 8, intermediate_size: 12, layers: 1, "
              "heads: 2}}\n");
  std::filesystem::rename(hf_ + "/config.json", config);
  std::filesystem::remove(dist_ + "/common.pt");
  ASSERT_TRUE(WriteMegatronFiles(dist_, MegatronCommon(), std::nullopt).ok());
  EXPECT_EQ(Run({"diff", hf_, dist_}), kExitDiffers) << "by names";
  for (const auto& [flag, file] : {std::pair("--config", config), std::pair("--spec", spec)}) {
    EXPECT_EQ(Run({"diff", hf_, dist_, flag, file}), kExitOk) << out_ << err_;
    EXPECT_EQ(out_, "equal: 12 parameters\n");
  }
  EXPECT_EQ(Run({"diff", hf_, dist_, "--config", config, "--spec", spec}), kExitUsage);
  EXPECT_THAT(err_, HasSubstr("--config is not supported with --spec"));
  EXPECT_EQ(Run({"diff", hf_, dist_, "--config", dir_.File("absent")}), kExitUsage);
}

// The model that a conversion writes to common.pt is used like the spec of a job's checkpoint.
TEST_F(CkptDiffTest, ReadsModelFromTorchDist) {
  std::filesystem::remove(hf_ + "/config.json");
  EXPECT_EQ(Run({"diff", hf_, dist_}), kExitOk) << out_ << err_;
  EXPECT_EQ(out_, "equal: 12 parameters\n");
}

TEST_F(CkptDiffTest, ReportsContradictingModels) {
  const std::string other = dir_.File("other");
  std::filesystem::copy(hf_, other);
  WriteFileOf(other + "/config.json",
              absl::StrReplaceAll(kConfig, {{"\"vocab", "\"rope_theta\": 500000, \"vocab"}}));
  EXPECT_EQ(Run({"diff", hf_, other}), kExitOk) << out_;
  EXPECT_EQ(err_, absl::StrCat(other, ": note: its model differs: rope_theta: 500000 there, and 10000 in ",
                               hf_, "\n"));
}

TEST_F(CkptDiffTest, ReportsWhyComparedByName) {
  WriteFileOf(hf_ + "/config.json", absl::StrReplaceAll(kConfig, {{"_layers\": 1", "_layers\": 2"}}));
  EXPECT_EQ(Run({"diff", hf_, native_}), kExitDiffers);
  EXPECT_THAT(err_, HasSubstr("note: compared by name, because a checkpoint does not match the model: "));
}

}  // namespace
}  // namespace fsdpd
