// Reads parameters in parts from other namings and layouts. tests/parity shows that other programs write them
// so.
#include "fsdp/checkpoint/convert/param_source.h"

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <numeric>

#include "base/temp_dir.h"
#include "fsdp/checkpoint/hf/hf_store.h"
#include "fsdp/checkpoint/testing/small_checkpoint.h"
#include "fsdp/plan/spec/testing/small_models.h"
#include "fsdp/plan/spec/testing/small_package.h"

namespace fsdpd {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::StartsWith;

// A parameter in its stored form; in our layout its elements are 0, 1, 2 ...
TestTensor MakeTheirs(const ModelConfig& model, const NamedParam& param, const char* type) {
  TestTensor tensor = MakeTestTensor(param.theirs, "float32", param.TheirShape());
  const int64_t count = static_cast<int64_t>(tensor.numbers.size() / sizeof(float));
  std::vector<float> ours(count);
  std::iota(ours.begin(), ours.end(), 0.f);
  const char* bytes = reinterpret_cast<const char*>(ours.data());
  if (param.rearrangement == Rearrangement::kNone) {
    std::memcpy(tensor.numbers.data(), bytes, tensor.numbers.size());
  } else {
    Rearrange(param.rearrangement, /*to_ours=*/false, param.shape[0], param.shape[1], HeadRows(model), 4,
              bytes, tensor.numbers.data());
  }
  if (std::string(type) == "float64") {
    std::vector<double> wide(count);
    for (int64_t i = 0; i < count; ++i) wide[i] = reinterpret_cast<float*>(tensor.numbers.data())[i];
    tensor.numbers.assign(reinterpret_cast<const char*>(wide.data()), count * sizeof(double));
  } else if (std::string(type) == "bfloat16") {
    std::string halves;
    for (int64_t i = 0; i < count; ++i)
      halves.append(tensor.numbers, 4 * i + 2, 2);  // bf16: the upper halves.
    tensor.numbers = halves;
  }
  tensor.type = FindTensorType(type);
  return tensor;
}

class ParamSourceTest : public ::testing::Test {
 protected:
  std::vector<TestTensor> Theirs(const ModelConfig& model, Naming naming, const char* type = "float32") {
    std::vector<TestTensor> tensors;
    for (const NamedParam& param : ParamsOf(model, naming)) tensors.push_back(MakeTheirs(model, param, type));
    return tensors;
  }

  void WriteHf(const std::vector<TestTensor>& tensors) {
    std::vector<StoredTensor> stored;
    for (const TestTensor& tensor : tensors) {
      stored.push_back({tensor.name, tensor.type, tensor.shape, static_cast<int64_t>(tensor.numbers.size())});
    }
    const auto writer = MakeHfWriter(dir_.path(), stored, 500, "{}\n");
    ASSERT_TRUE(writer.ok()) << writer.status();
    for (size_t i = 0; i < tensors.size(); ++i) {
      ASSERT_TRUE((*writer)->Write(i, tensors[i].numbers.data()).ok());
    }
    ASSERT_TRUE((*writer)->Finish().ok());
  }

  // The tensors of OddLlama.
  static std::vector<TestTensor> Megatrons(Naming naming) {
    std::map<std::string, TestTensor> tensors;
    for (const NamedParam& param : ParamsOf(OddLlama(), naming)) {
      TestTensor& tensor = tensors[param.theirs];
      if (tensor.numbers.empty()) tensor = MakeTestTensor(param.theirs, "float32", param.TheirShape());
      auto* numbers = reinterpret_cast<float*>(tensor.numbers.data());
      std::vector<SharedRun> runs = param.runs;
      if (runs.empty()) runs.push_back({0, 0, static_cast<int64_t>(tensor.numbers.size() / sizeof(float))});
      for (const SharedRun& run : runs) {
        std::iota(numbers + run.theirs, numbers + run.theirs + run.numbers, static_cast<float>(run.ours));
      }
    }
    std::vector<TestTensor> written;
    for (const auto& [name, tensor] : tensors) written.push_back(tensor);
    return written;
  }

  void Rewrite(const std::vector<TestTensor>& tensors) {
    std::filesystem::remove_all(dir_.path());
    std::filesystem::create_directory(dir_.path());
    WriteDcp(tensors);
  }

  void WriteDcp(const std::vector<TestTensor>& tensors) {
    ASSERT_TRUE(CommitTestFiles(dir_.path(), WriteTestFiles(dir_.path(), tensors, 3)).ok());
  }

  // Compares every run of every parameter.
  void ExpectRuns(const ModelConfig& model) {
    const auto source = ParamSource::Open(dir_.path(), model);
    ASSERT_TRUE(source.ok()) << source.status();
    ASSERT_THAT((*source)->violations(), IsEmpty());
    for (const NamedParam& param : ParamsOf(model, Naming::kOurs)) {
      const std::vector<int64_t> shape = param.TheirShape();
      const int64_t count = std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
      for (int64_t begin = 0; begin <= count; ++begin) {
        for (int64_t end = begin; end <= count; end += end < begin + 3 ? 1 : 5) {
          std::vector<float> read(end - begin), expected(end - begin);
          std::iota(expected.begin(), expected.end(), static_cast<float>(begin));
          const absl::Status status = (*source)->ReadRun(param.ours, begin, end - begin, read.data());
          ASSERT_TRUE(status.ok()) << status;
          ASSERT_EQ(read, expected) << param.ours << " from " << begin << " to " << end;
        }
      }
    }
  }

  TempDir dir_;
};

TEST_F(ParamSourceTest, ReadsTransposedMatrices) {
  WriteHf(Theirs(OddGpt2(), Naming::kTransformers));
  ExpectRuns(OddGpt2());
}

TEST_F(ParamSourceTest, ReadsPairedRows) {
  WriteDcp(Theirs(OddLlama(), Naming::kTorchtitan));
  ExpectRuns(OddLlama());
}

// One stored tensor per expert, and runs that span several experts.
TEST_F(ParamSourceTest, ReadsPerExpertTensors) {
  for (const LlamaConfig& model : {SmallMixtral(), SmallQwen3Moe()}) {
    std::vector<TestTensor> tensors;
    for (const NamedParam& param : ParamsOf(model, Naming::kTransformers)) {
      tensors.push_back(MakeTestTensor(param.theirs, "float32", param.shape));
      auto* numbers = reinterpret_cast<float*>(tensors.back().numbers.data());
      std::iota(numbers, numbers + tensors.back().numbers.size() / sizeof(float),
                static_cast<float>(param.ours_begin));
    }
    std::filesystem::remove_all(dir_.path());
    std::filesystem::create_directory(dir_.path());
    WriteHf(tensors);
    ExpectRuns(model);
  }
}

// Queries, keys and values in one tensor, gates and ups in another, and layers stacked or by number.
TEST_F(ParamSourceTest, ReadsPartsOfMegatronTensors) {
  for (const Naming naming : {Naming::kMegatron, Naming::kMegatronLayers}) {
    Rewrite(Megatrons(naming));
    ExpectRuns(OddLlama());
  }
}

// Megatron-Core with and without its distributed optimizer. The model's tensors are in bf16.
TEST_F(ParamSourceTest, PrefersMainParameters) {
  for (const char* main : {"param", "fp32_param"}) {
    std::vector<TestTensor> written = Megatrons(Naming::kMegatron);
    const size_t count = written.size();
    for (size_t i = 0; i < count; ++i) {
      written.push_back(written[i]);
      written.back().name = absl::StrCat("optimizer.state.", main, ".", written[i].name);
      written[i] = MakeTestTensor(written[i].name, "bfloat16", written[i].shape);
    }
    Rewrite(written);
    ExpectRuns(OddLlama());
    const auto source = ParamSource::Open(dir_.path(), OddLlama());
    ASSERT_TRUE(source.ok()) << source.status();
    EXPECT_THAT((*source)->left_out(), IsEmpty());
    EXPECT_THAT((*source)->no_main(), IsEmpty());
  }
}

TEST_F(ParamSourceTest, SkipsUnusableMainParameters) {
  std::vector<TestTensor> written = Megatrons(Naming::kMegatron);
  written.push_back(MakeTestTensor("optimizer.state.param." + written[0].name, "float32", {3}));
  Rewrite(written);
  ExpectRuns(OddLlama());
  const auto source = ParamSource::Open(dir_.path(), OddLlama());
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_THAT((*source)->no_main(), AllOf(StartsWith("optimizer.state.param."), HasSubstr("float32 [3]")));
}

TEST_F(ParamSourceTest, ConvertsEveryTypeToFloat32) {
  WriteHf(Theirs(OddGpt2(), Naming::kTransformers, "float64"));
  ExpectRuns(OddGpt2());
}

TEST_F(ParamSourceTest, ConvertsBf16OfDcp) {
  WriteDcp(Theirs(OddLlama(), Naming::kTransformers, "bfloat16"));
  ExpectRuns(OddLlama());
}

int64_t BytesRead() {
  std::ifstream file("/proc/self/io");
  std::string word;
  int64_t bytes = 0;
  file >> word >> bytes;  // rchar
  return bytes;
}

TEST_F(ParamSourceTest, ReadsOnlyRequestedBytes) {
  Gpt2Config large = OddGpt2();
  large.hidden_size = 64, large.intermediate_size = 256;
  WriteHf(Theirs(large, Naming::kTransformers));
  const auto source = ParamSource::Open(dir_.path(), large);
  ASSERT_TRUE(source.ok()) << source.status();
  BytesRead();
  const int64_t first = BytesRead(), alone = BytesRead() - first;  // The overhead of the measurement.
  for (const char* param : {"embedding.weight", "layer.1.ffn.w1", "layer.0.attention.wqkv"}) {
    for (const int64_t elements : {1, 64, 100}) {
      std::vector<float> numbers(elements);
      const int64_t begin = BytesRead();
      ASSERT_TRUE((*source)->ReadRun(param, 70, elements, numbers.data()).ok());
      EXPECT_EQ(BytesRead() - begin - alone, 4 * elements) << param;
      EXPECT_EQ(numbers[0], 70);
    }
  }
}

TEST_F(ParamSourceTest, ReportsAllMismatches) {
  std::vector<TestTensor> theirs = Theirs(OddLlama(), Naming::kTransformers);
  theirs[1] = MakeTestTensor(theirs[1].name, "float32", {4});
  theirs[2].name = "model.layers.0.other.weight";
  WriteHf(theirs);
  const auto source = ParamSource::Open(dir_.path(), OddLlama());
  ASSERT_TRUE(source.ok()) << source.status();
  std::vector<std::string> violations;
  for (const DcpViolation& violation : (*source)->violations())
    violations.push_back(violation.where + ": " + violation.what);
  EXPECT_THAT(violations,
              ElementsAre("model.layers.0.input_layernorm.weight: wrong shape (got [4], want [5])",
                          "model.layers.0.self_attn.q_proj.weight: is missing",
                          "model.layers.0.other.weight: is not in the model"));
}

// Regression test: the head was dropped silently.
TEST_F(ParamSourceTest, RejectsTiedHeadThatDiffersFromEmbedding) {
  std::vector<TestTensor> theirs = Theirs(OddGpt2(), Naming::kTransformers);
  ASSERT_EQ(theirs[0].name, "transformer.wte.weight");
  theirs.push_back(theirs[0]);
  theirs.back().name = "lm_head.weight";
  WriteHf(theirs);
  ExpectRuns(OddGpt2());
  const auto fault_of = [&]() -> std::string {
    std::filesystem::remove_all(dir_.path());
    std::filesystem::create_directory(dir_.path());
    WriteHf(theirs);
    const auto source = ParamSource::Open(dir_.path(), OddGpt2());
    if (!source.ok() || (*source)->violations().size() != 1) return "";
    return (*source)->violations()[0].where + ": " + (*source)->violations()[0].what;
  };
  theirs.back().numbers.back() ^= 1;
  EXPECT_THAT(fault_of(), StartsWith("lm_head.weight: differs from transformer.wte.weight"));
  theirs.back() = MakeTestTensor("lm_head.weight", "bfloat16", theirs[0].shape);
  EXPECT_THAT(fault_of(), StartsWith("lm_head.weight: differs"));
}

TEST_F(ParamSourceTest, OtherFamilyHasNoParameters) {
  WriteHf(Theirs(OddGpt2(), Naming::kTransformers));
  const auto source = ParamSource::Open(dir_.path(), OddLlama());
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_THAT((*source)->violations(), SizeIs(1));
}

TEST_F(ParamSourceTest, IdentifiesNaming) {
  WriteDcp(Theirs(OddLlama(), Naming::kTorchtitan));
  const auto reader = OpenStore(dir_.path());
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_EQ(NamingOf(**reader, OddLlama()), Naming::kTorchtitan);
  EXPECT_EQ(NamingOf(**reader, OddGpt2()), std::nullopt);
  EXPECT_EQ(NamingOf(**reader, PluginConfig()), std::nullopt);
}

TEST_F(ParamSourceTest, PackageHasNamesOfItsModel) {
  v1::Model model;
  *model.mutable_package() = SmallPackage();
  const ModelConfig package = ToModelConfig(model);
  const std::vector<TestTensor> theirs = Theirs(package, Naming::kTransformers);
  ASSERT_THAT(theirs, SizeIs(7));
  EXPECT_EQ(theirs[0].name, "model.embed_tokens.weight");
  EXPECT_EQ(theirs[6].name, "lm_head.weight");
  WriteHf(theirs);
  ExpectRuns(package);
  EXPECT_EQ(NamingOf(**OpenStore(dir_.path()), package), Naming::kTransformers);
}

// Several models in one state, complete or not, each under its own prefix, filled with the prefix's index.
class SeveralModelsTest : public ParamSourceTest {
 protected:
  void Write(const std::vector<std::string>& before, size_t first_lacks = 0) {
    std::filesystem::remove_all(dir_.path());
    std::filesystem::create_directory(dir_.path());
    std::vector<TestTensor> tensors;
    for (size_t i = 0; i < before.size(); ++i) {
      std::vector<TestTensor> model = Theirs(OddLlama(), Naming::kTransformers);
      if (i == 0) model.resize(model.size() - first_lacks);
      for (TestTensor& tensor : model) {
        tensor.name = before[i] + tensor.name;
        auto* numbers = reinterpret_cast<float*>(tensor.numbers.data());
        std::fill(numbers, numbers + tensor.numbers.size() / sizeof(float), static_cast<float>(i));
        tensors.push_back(std::move(tensor));
      }
    }
    WriteDcp(tensors);
  }

  // The index of the model that was chosen, or the violation.
  std::string Taken() {
    const auto source = ParamSource::Open(dir_.path(), OddLlama());
    EXPECT_TRUE(source.ok()) << source.status();
    for (const DcpViolation& violation : (*source)->violations())
      return violation.where + ": " + violation.what;
    float number = -1;
    EXPECT_TRUE((*source)->ReadRun("embedding.weight", 0, 1, &number).ok());
    EXPECT_TRUE((*source)->ReadRun("layer.1.ffn.w1", 0, 1, &number).ok());
    return absl::StrCat(number);
  }
};

TEST_F(SeveralModelsTest, PrefersModelToItsAverage) {
  for (const char* model :
       {"model.", "", "state_dict.", "app.model.", "model_state_dict.", "state.model._orig_mod."}) {
    for (const char* other : {"ema.", "e.", "model_ema.", "teacher.model.", "ema.module."}) {
      Write({other, model});
      EXPECT_EQ(Taken(), "1") << model << " and " << other;
    }
  }
}

TEST_F(SeveralModelsTest, AcceptsAnyNameOfASingleModel) {
  Write({"ema."});
  EXPECT_EQ(Taken(), "0");
}

TEST_F(SeveralModelsTest, PrefersCompleteModel) {
  Write({"a.", "teacher."}, /*first_lacks=*/1);
  EXPECT_EQ(Taken(), "1");
}

// Training would silently continue from an average.
TEST_F(SeveralModelsTest, IncompleteModelIsNotReplacedByAverage) {
  Write({"model.", "ema."}, /*first_lacks=*/1);
  EXPECT_THAT(Taken(), AllOf(StartsWith("model."), EndsWith(": is missing")));
}

TEST_F(SeveralModelsTest, RejectsAmbiguousModels) {
  for (const char* second : {"teacher.", "student."}) {
    Write({"ema.", second});
    EXPECT_THAT(Taken(), AllOf(StartsWith(absl::StrCat("'ema.model.' and '", second, "model.': ambiguous")),
                               HasSubstr("save only the intended one")));
  }
  Write({"model.", "state_dict."});
  EXPECT_THAT(Taken(), HasSubstr("'model.model.' and 'state_dict.model.'"));
}

}  // namespace
}  // namespace fsdpd
