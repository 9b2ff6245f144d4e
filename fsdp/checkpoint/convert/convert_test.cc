// Conversions of a small model. tests/parity shows that other programs read the results and compute the same.
#include "fsdp/checkpoint/convert/convert.h"

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include <filesystem>
#include <map>

#include "base/temp_dir.h"
#include "fsdp/checkpoint/hf/hf_store.h"
#include "fsdp/checkpoint/names/job_keys.h"
#include "fsdp/checkpoint/names/param_match.h"
#include "fsdp/checkpoint/names/tensor_names.h"
#include "fsdp/checkpoint/testing/small_checkpoint.h"
#include "fsdp/plan/spec/testing/small_models.h"

namespace fsdpd {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class ConvertTest : public ::testing::Test {
 protected:
  ConvertTest() {
    for (const NamedParam& param : ParamsOf(SmallGpt2(), Naming::kOurs)) {
      tensors_.push_back(MakeSmallNumbers(MainKey(param.ours), param.shape));
    }
    WriteNative(tensors_);
  }

  // Includes an entry that is not a parameter, like a job's checkpoint.
  void WriteNative(const std::vector<TestTensor>& tensors) {
    fs::remove_all(native_);
    fs::create_directory(native_);
    std::vector<TestTensor> all = tensors;
    all.push_back(MakeSmallNumbers("optimizer.state.x.exp_avg", {3}));
    ASSERT_TRUE(CommitTestFiles(native_, WriteTestFiles(native_, all, 3)).ok());
  }

  absl::StatusOr<ConversionResult> Run(
      const std::string& source, const std::string& target, StoreFormat to, const char* type = "float32",
      const std::function<bool()>& stopped = [] { return false; }) {
    ConversionOptions conversion;
    conversion.source = source;
    conversion.target = dir_.File(target);
    conversion.model = model_;
    conversion.to = to;
    conversion.type = FindTensorType(type);
    conversion.file_bytes = 3000;
    conversion.config = "{}\n";
    return Convert(conversion, 2, stopped, &progress_);
  }

  // The parameters in Megatron-Core's form, by its rules: each is a part of a tensor.
  std::vector<TestTensor> MegatronsOf(Naming naming) const {
    std::map<std::string, TestTensor> made;
    const std::vector<NamedParam> params = ParamsOf(model_, naming);
    for (size_t i = 0; i < params.size(); ++i) {
      TestTensor& tensor = made.try_emplace(params[i].theirs, MakeTestTensor(params[i].theirs, "float32",
                                                                             params[i].TheirShape()))
                               .first->second;
      const std::string& numbers = tensors_[i].numbers;
      if (params[i].runs.empty()) tensor.numbers = numbers;
      for (const SharedRun& run : params[i].runs) {
        tensor.numbers.replace(run.theirs * 4, run.numbers * 4, numbers, run.ours * 4, run.numbers * 4);
      }
    }
    std::vector<TestTensor> tensors;
    for (auto& [name, tensor] : made) tensors.push_back(std::move(tensor));
    return tensors;
  }

  void SetModel(const ModelConfig& model) {
    model_ = model;
    tensors_.clear();
    for (const NamedParam& param : ParamsOf(model_, Naming::kOurs)) {
      if (param.ours_begin == 0)
        tensors_.push_back(MakeSmallNumbers(MainKey(param.ours), param.TheirShape()));
    }
    WriteNative(tensors_);
  }

  TempDir dir_;
  ModelConfig model_ = SmallGpt2();
  const std::string native_ = dir_.File("native");
  std::vector<TestTensor> tensors_;
  ConversionProgress progress_;
};

TEST_F(ConvertTest, RoundTripIsIdentical) {
  for (const char* type : {"float32", "bfloat16", "float16"}) {
    const auto there = Run(native_, std::string("hf.") + type, StoreFormat::kHf, type);
    ASSERT_TRUE(there.ok()) << there.status();
    EXPECT_TRUE(there->violations.empty());
    EXPECT_EQ(there->tensors, static_cast<int64_t>(tensors_.size()));
    EXPECT_GT(there->files, 1);
    EXPECT_EQ(there->overflowed, 0);
    EXPECT_THAT(there->left_out, ElementsAre("optimizer.state.x.exp_avg"));
    EXPECT_EQ(progress_.bytes, there->bytes);
    EXPECT_EQ(progress_.bytes, progress_.of_bytes);
    progress_.bytes = 0;
    const auto back =
        Run(dir_.File(std::string("hf.") + type), std::string("back.") + type, StoreFormat::kDcp);
    ASSERT_TRUE(back.ok()) << back.status();
    EXPECT_EQ(back->left_out.size(), 0u);
    EXPECT_TRUE(ReadBack(dir_.File(std::string("back.") + type), tensors_).ok());
    progress_.bytes = 0;
  }
}

TEST_F(ConvertTest, ConvertsToAndFromMegatronTensors) {
  int number = 0;
  for (const ModelConfig& model : std::vector<ModelConfig>{SmallLlamaWithAll(), SmallGpt2()}) {
    SetModel(model);
    const std::string name = absl::StrCat("megatron", ++number), back = absl::StrCat("back", number);
    const auto there = Run(native_, name, StoreFormat::kTorchDist);
    ASSERT_TRUE(there.ok()) << there.status();
    EXPECT_EQ(FormatOf(dir_.File(name)), StoreFormat::kTorchDist);
    const std::vector<TestTensor> megatrons = MegatronsOf(Naming::kMegatron);
    EXPECT_EQ(there->tensors, static_cast<int64_t>(megatrons.size()));
    EXPECT_TRUE(ReadBack(dir_.File(name), megatrons).ok());
    ASSERT_TRUE(Run(dir_.File(name), back, StoreFormat::kDcp).ok());
    EXPECT_TRUE(ReadBack(dir_.File(back), tensors_).ok());
  }
}

TEST_F(ConvertTest, SplitsAndMergesExperts) {
  int number = 0;
  for (const LlamaConfig& model : {SmallMixtral(), SmallQwen3Moe(), SmallDots1(), SmallDeepSeek()}) {
    SetModel(model);
    const std::string name = absl::StrCat("experts", ++number), back = absl::StrCat("back", number);
    const auto there = Run(native_, name, StoreFormat::kHf);
    ASSERT_TRUE(there.ok()) << there.status();
    EXPECT_TRUE(there->violations.empty());
    const int64_t matrices = model.expert_layers() * 3;
    EXPECT_EQ(there->tensors, static_cast<int64_t>(tensors_.size()) + matrices * (model.experts.count - 1));
    ASSERT_TRUE(Run(dir_.File(name), back, StoreFormat::kDcp).ok());
    EXPECT_TRUE(ReadBack(dir_.File(back), tensors_).ok());
    const auto refused = Run(native_, absl::StrCat("megatron", number), StoreFormat::kTorchDist);
    ASSERT_TRUE(refused.ok()) << refused.status();
    ASSERT_EQ(refused->violations.size(), 1);
    EXPECT_THAT(refused->violations[0].what, HasSubstr("torch_dist"));
  }
}

// Updates of a thousandth would be lost in bf16.
TEST_F(ConvertTest, KeepsSelectionBiasesInFp32) {
  SetModel(SmallDots1());
  for (TestTensor& tensor : tensors_) {
    if (!absl::EndsWith(tensor.name, "router_bias")) continue;
    auto* numbers = reinterpret_cast<float*>(tensor.numbers.data());
    for (int64_t i = 0; i < SmallDots1().experts.count; ++i)
      numbers[i] = 0.5F + 0.001F * static_cast<float>(i);
  }
  WriteNative(tensors_);
  ASSERT_TRUE(Run(native_, "narrow", StoreFormat::kHf, "bfloat16").ok());
  const auto reader = OpenHfDirectory(dir_.File("narrow"));
  ASSERT_TRUE(reader.ok()) << reader.status();
  int biases = 0;
  for (const StoredTensor& tensor : (*reader)->tensors()) {
    const bool bias = absl::EndsWith(tensor.name, "mlp.gate.e_score_correction_bias");
    biases += bias;
    EXPECT_EQ(tensor.type->name, bias ? "float32" : "bfloat16") << tensor.name;
  }
  EXPECT_EQ(biases, std::get<LlamaConfig>(model_).expert_layers());
  ASSERT_TRUE(Run(dir_.File("narrow"), "wide", StoreFormat::kDcp).ok());
  EXPECT_TRUE(ReadBack(dir_.File("wide"), tensors_).ok());  // All other numbers are small integers.
}

TEST_F(ConvertTest, ReadsMegatronPerLayerTensors) {
  fs::create_directory(dir_.File("layers"));
  std::vector<TestTensor> tensors = MegatronsOf(Naming::kMegatronLayers);
  tensors.push_back(MakeSmallNumbers("optimizer.state.sketch.embedding.word_embeddings.weight", {32, 8}));
  ASSERT_TRUE(CommitTestFiles(dir_.File("layers"), WriteTestFiles(dir_.File("layers"), tensors, 3)).ok());
  const auto done = Run(dir_.File("layers"), "out", StoreFormat::kDcp);
  ASSERT_TRUE(done.ok()) << done.status();
  EXPECT_THAT(done->left_out, ElementsAre("optimizer.state.sketch.embedding.word_embeddings.weight"));
  EXPECT_TRUE(ReadBack(dir_.File("out"), tensors_).ok());
}

// A tensor that three parameters share.
TEST_F(ConvertTest, ReportsMissingMegatronTensorOnce) {
  fs::create_directory(dir_.File("layers"));
  std::vector<TestTensor> tensors = MegatronsOf(Naming::kMegatron);
  for (TestTensor& tensor : tensors) {
    if (tensor.name == "decoder.layers.mlp.linear_fc2.bias")
      tensor.name = "decoder.layers.mlp.linear_fc3.bias";
    if (tensor.name == "embedding.word_embeddings.weight") tensor = MakeSmallNumbers(tensor.name, {128, 8});
  }
  ASSERT_TRUE(CommitTestFiles(dir_.File("layers"), WriteTestFiles(dir_.File("layers"), tensors, 3)).ok());
  const auto done = Run(dir_.File("layers"), "out", StoreFormat::kDcp);
  ASSERT_TRUE(done.ok()) << done.status();
  std::vector<std::string> told;
  for (const DcpViolation& violation : done->violations)
    told.push_back(violation.where + ": " + violation.what);
  EXPECT_THAT(told, ElementsAre("embedding.word_embeddings.weight: wrong shape (got [128, 8], want [32, 8])",
                                "decoder.layers.mlp.linear_fc2.bias: is missing",
                                "decoder.layers.mlp.linear_fc3.bias: is not in the model"));
  EXPECT_FALSE(fs::exists(dir_.File("out")));
}

TEST_F(ConvertTest, CountsOverflowedNumbers) {
  reinterpret_cast<float*>(tensors_[0].numbers.data())[5] = 1e6f;
  WriteNative(tensors_);
  const auto done = Run(native_, "hf", StoreFormat::kHf, "float16");
  ASSERT_TRUE(done.ok()) << done.status();
  EXPECT_EQ(done->overflowed, 1);
}

TEST_F(ConvertTest, ReportsAllViolationsWithoutWriting) {
  std::vector<TestTensor> wrong = tensors_;
  wrong[0] = MakeSmallNumbers("model.module.embedding.weight", {32, 9});
  wrong[1].name = "model.module.embedding.locations";
  WriteNative(wrong);
  const auto done = Run(native_, "hf", StoreFormat::kHf);
  ASSERT_TRUE(done.ok()) << done.status();
  std::vector<std::string> told;
  for (const DcpViolation& violation : done->violations)
    told.push_back(violation.where + ": " + violation.what);
  EXPECT_THAT(told, ElementsAre("model.module.embedding.weight: wrong shape (got [32, 9], want [32, 8])",
                                "model.module.embedding.positions: is missing",
                                "model.module.embedding.locations: is not in the model"));
  EXPECT_FALSE(fs::exists(dir_.File("hf")));
  EXPECT_FALSE(fs::exists(dir_.File("hf.part")));
}

// The specified model ties the head: a separate head would be lost.
TEST_F(ConvertTest, RejectsSeparateHeadForTiedModel) {
  std::vector<TestTensor> untied = tensors_;
  untied.push_back(MakeSmallNumbers("model.module.head.output", {32, 8}));
  WriteNative(untied);
  const auto done = Run(native_, "hf", StoreFormat::kHf);
  ASSERT_TRUE(done.ok()) << done.status();
  ASSERT_EQ(done->violations.size(), 1u);
  EXPECT_EQ(done->violations[0].where, "model.module.head.output");
}

// A checkpoint may have both names; a copy of the embedding may be dropped, another matrix may not.
TEST_F(ConvertTest, RejectsTiedHeadThatDiffersFromEmbedding) {
  std::vector<TestTensor> theirs;
  for (const NamedParam& param : ParamsOf(SmallGpt2(), Naming::kTransformers))
    theirs.push_back(MakeSmallNumbers(param.theirs, param.TheirShape()));
  theirs.push_back(theirs[0]);
  theirs.back().name = "lm_head.weight";
  const auto faults_of = [&](const std::string& directory) {
    fs::create_directory(dir_.File(directory));
    EXPECT_TRUE(CommitTestFiles(dir_.File(directory), WriteTestFiles(dir_.File(directory), theirs, 2)).ok());
    const auto done = Run(dir_.File(directory), directory + "-hf", StoreFormat::kHf);
    EXPECT_TRUE(done.ok()) << done.status();
    return done->violations;
  };
  EXPECT_TRUE(faults_of("same").empty());
  theirs.back().numbers[0] ^= 1;
  const DcpViolations other = faults_of("other");
  ASSERT_EQ(other.size(), 1u);
  EXPECT_EQ(other[0].where, "lm_head.weight");
}

TEST_F(ConvertTest, ReportsOtherFamily) {
  fs::create_directory(dir_.File("other"));
  ASSERT_TRUE(
      CommitTestFiles(dir_.File("other"), WriteTestFiles(dir_.File("other"), SmallTensors(), 1)).ok());
  const auto done = Run(dir_.File("other"), "hf", StoreFormat::kHf);
  ASSERT_TRUE(done.ok()) << done.status();
  EXPECT_EQ(done->violations.size(), 1u);
  EXPECT_TRUE(absl::IsNotFound(Run(dir_.path(), "hf", StoreFormat::kHf).status()));
}

TEST_F(ConvertTest, DetectsDamagedNumbers) {
  // Single chunks, so that checksums are verified.
  fs::remove_all(native_);
  fs::create_directory(native_);
  ASSERT_TRUE(CommitTestFiles(native_, WriteTestFiles(native_, tensors_, 1)).ok());
  const std::string path = native_ + "/__0_0.distcp";
  std::string bytes = ReadFileOf(path);
  const size_t at = bytes.find(tensors_[3].numbers);
  ASSERT_NE(at, std::string::npos);
  bytes[at + 1] ^= 1;
  WriteFileOf(path, bytes);
  EXPECT_TRUE(absl::IsDataLoss(Run(native_, "hf", StoreFormat::kHf).status()));
  EXPECT_FALSE(fs::exists(dir_.File("hf")));
}

TEST_F(ConvertTest, InterruptLeavesNothing) {
  for (const StoreFormat to : {StoreFormat::kHf, StoreFormat::kDcp}) {
    std::atomic<int> asked = 0;
    const auto done = Run(native_, "out", to, "float32", [&asked] { return ++asked > 5; });
    EXPECT_TRUE(absl::IsCancelled(done.status())) << done.status();
    EXPECT_FALSE(fs::exists(dir_.File("out")));
    EXPECT_FALSE(fs::exists(dir_.File("out.part")));
  }
}

TEST_F(ConvertTest, FullDiskLeavesNothing) {
  signal(SIGXFSZ, SIG_IGN);
  rlimit before;
  getrlimit(RLIMIT_FSIZE, &before);
  for (const StoreFormat to : {StoreFormat::kHf, StoreFormat::kDcp}) {
    for (const rlim_t bytes : {0, 100, 1500, 2500}) {
      rlimit small = before;
      small.rlim_cur = bytes;
      setrlimit(RLIMIT_FSIZE, &small);
      const auto done = Run(native_, "out", to);
      setrlimit(RLIMIT_FSIZE, &before);
      EXPECT_TRUE(absl::IsUnavailable(done.status())) << bytes << ": " << done.status();
      EXPECT_FALSE(fs::exists(dir_.File("out")));
      EXPECT_FALSE(fs::exists(dir_.File("out.part")));
    }
  }
}

using ConvertDeathTest = ConvertTest;

TEST_F(ConvertDeathTest, KilledConversionCanBeRestarted) {
  testing::FLAGS_gtest_death_test_style = "fast";  // The child uses this process's directory.
  std::atomic<int> asked = 0;
  EXPECT_EXIT(Run(native_, "out", StoreFormat::kDcp, "float32",
                  [&asked] {
                    if (++asked > 5) _exit(7);
                    return false;
                  })
                  .IgnoreError(),
              testing::ExitedWithCode(7), "");
  EXPECT_FALSE(fs::exists(dir_.File("out")));
  EXPECT_TRUE(fs::exists(dir_.File("out.part")));
  const auto done = Run(native_, "out", StoreFormat::kDcp);
  ASSERT_TRUE(done.ok()) << done.status();
  EXPECT_TRUE(ReadBack(dir_.File("out"), tensors_).ok());
  EXPECT_FALSE(fs::exists(dir_.File("out.part")));
}

TEST_F(ConvertTest, KeepsExistingTarget) {
  ASSERT_TRUE(Run(native_, "out", StoreFormat::kHf).ok());
  EXPECT_TRUE(absl::IsAlreadyExists(Run(native_, "out", StoreFormat::kDcp).status()));
  EXPECT_TRUE(absl::IsAlreadyExists(Run(native_, "native", StoreFormat::kHf).status()))
      << "the source itself";
  EXPECT_TRUE(ReadBack(native_, tensors_).ok());
}

}  // namespace
}  // namespace fsdpd
