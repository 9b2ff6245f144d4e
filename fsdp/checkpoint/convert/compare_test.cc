#include "fsdp/checkpoint/convert/compare.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <map>
#include <numeric>

#include "base/temp_dir.h"
#include "fsdp/checkpoint/hf/hf_store.h"
#include "fsdp/checkpoint/names/adapter_names.h"
#include "fsdp/checkpoint/names/job_keys.h"
#include "fsdp/checkpoint/names/param_match.h"
#include "fsdp/checkpoint/names/tensor_names.h"
#include "fsdp/checkpoint/testing/small_checkpoint.h"
#include "fsdp/plan/spec/testing/small_models.h"

namespace fsdpd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

TestTensor Floats(const std::string& name, const std::vector<float>& numbers) {
  TestTensor tensor = MakeTestTensor(name, "float32", {static_cast<int64_t>(numbers.size())});
  std::copy(numbers.begin(), numbers.end(), reinterpret_cast<float*>(tensor.numbers.data()));
  return tensor;
}

class CompareTest : public ::testing::Test {
 protected:
  std::string Write(const std::string& name, const std::vector<TestTensor>& tensors, int cuts = 1) {
    std::filesystem::create_directory(dir_.File(name));
    EXPECT_TRUE(CommitTestFiles(dir_.File(name), WriteTestFiles(dir_.File(name), tensors, cuts)).ok());
    return dir_.File(name);
  }

  static Comparison Compared(const std::string& a, const std::string& b,
                             const std::optional<ModelConfig>& model = std::nullopt) {
    const auto first = OpenToCompare(a), second = OpenToCompare(b);
    EXPECT_TRUE(first.ok() && second.ok()) << first.status() << second.status();
    const auto comparison = CompareStores(*first, *second, model, 2, [] { return false; });
    EXPECT_TRUE(comparison.ok()) << comparison.status();
    return comparison.ok() ? *comparison : Comparison();
  }

  TensorDifference OnlyDifference(const std::vector<TestTensor>& a, const std::vector<TestTensor>& b) {
    static int number = 0;
    const std::string name = std::to_string(++number);
    const Comparison comparison = Compared(Write("a" + name, a), Write("b" + name, b));
    EXPECT_EQ(comparison.differences.size(), 1u);
    return comparison.differences.empty() ? TensorDifference() : comparison.differences[0];
  }

  TempDir dir_;
};

TEST_F(CompareTest, IgnoresChunking) {
  const Comparison same = Compared(Write("a", SmallTensors(), 1), Write("b", SmallTensors(), 3));
  EXPECT_TRUE(same.differences.empty());
  EXPECT_EQ(same.equal, 6) << "five tensors and the iteration";
}

TEST_F(CompareTest, ReportsLargestDifference) {
  const TensorDifference found = OnlyDifference({Floats("w", {1, 2, 3, -4})}, {Floats("w", {1, 2.5, 3, 4})});
  EXPECT_EQ(found.name, "w");
  EXPECT_EQ(found.largest, 8);
  EXPECT_EQ(found.numbers, 2);
}

TEST_F(CompareTest, ComparesAdaptersOfPeftWithThoseOfAJob) {
  LoraConfig lora;
  lora.rank = 2;
  lora.targets = {"layer.0.attention.wq", "layer.1.ffn.w2"};
  std::vector<TestTensor> ours, theirs;
  for (const NamedParam& param : AdapterParamsOf(SmallLlama(), lora)) {
    ours.push_back(MakeTestTensor(MainKey(param.ours), "float32", param.shape));
    theirs.push_back(ours.back());
    theirs.back().name = param.theirs;
  }
  ASSERT_EQ(ours.size(), 4u);
  ours.push_back(Floats("optimizer.state.module.module.module.layer.0.attention.wq.lora_A.exp_avg", {1}));
  const Comparison same = Compared(Write("ours", ours), Write("theirs", theirs), SmallLlama());
  EXPECT_THAT(same.differences, IsEmpty());
  EXPECT_EQ(same.equal, 4);
  EXPECT_TRUE(same.of_parameters);
  EXPECT_THAT(same.left_out_first, testing::Contains(ours.back().name));
  reinterpret_cast<float*>(theirs[0].numbers.data())[1] += 2;
  theirs.pop_back();
  theirs[2].shape[0] -= 1;
  theirs[2].numbers.resize(theirs[2].numbers.size() / ours[2].shape[0] * theirs[2].shape[0]);
  const Comparison other = Compared(Write("other", theirs), dir_.File("ours"), SmallLlama());
  ASSERT_EQ(other.differences.size(), 3u);
  EXPECT_EQ(other.equal, 1);
  EXPECT_EQ(other.differences[0].name, "layer.0.attention.wq.lora_A");
  EXPECT_EQ(other.differences[0].largest, 2);
  EXPECT_NE(other.differences[1].first, other.differences[1].second);
  EXPECT_EQ(other.differences[2].first, "");
}

TEST_F(CompareTest, NansAreEqual) {
  const float nan = std::nanf(""), infinite = std::numeric_limits<float>::infinity();
  EXPECT_TRUE(Compared(Write("a", {Floats("w", {nan, infinite, 0.0f})}),
                       Write("b", {Floats("w", {nan, infinite, -0.0f})}))
                  .differences.empty());
  EXPECT_EQ(OnlyDifference({Floats("w", {nan, 1})}, {Floats("w", {1, 1})}).largest, kInfinity);
  EXPECT_EQ(OnlyDifference({Floats("w", {infinite})}, {Floats("w", {-infinite})}).largest, kInfinity);
}

TEST_F(CompareTest, ReportsNamesShapesAndTypes) {
  TensorDifference found = OnlyDifference({MakeTestTensor("w", "int64", {2, 3})}, {});
  EXPECT_EQ(found.first, "int64 [2, 3]");
  EXPECT_EQ(found.second, "");
  EXPECT_FALSE(found.largest.has_value());
  found = OnlyDifference({MakeTestTensor("w", "int64", {2, 3})}, {MakeTestTensor("w", "int64", {3, 2})});
  EXPECT_EQ(found.second, "int64 [3, 2]");
  EXPECT_FALSE(found.largest.has_value());
  found = OnlyDifference({Floats("w", {1, 2})}, {MakeTestTensor("w", "int8", {2})});
  EXPECT_EQ(found.first, "float32 [2]");
  EXPECT_TRUE(found.largest.has_value());
  // A type whose numbers are not compared.
  TestTensor other = MakeTestTensor("w", "float8_e5m2", {2});
  other.numbers[0] = static_cast<char>(other.numbers[0] ^ 1);
  found = OnlyDifference({MakeTestTensor("w", "float8_e5m2", {2})}, {other});
  EXPECT_FALSE(found.largest.has_value());
}

TEST_F(CompareTest, ComparesDifferentFormats) {
  const std::vector<TestTensor> tensors = {Floats("v", {5}), Floats("w", {1, 2, 3})};
  const std::string dcp = Write("dcp", tensors), hf = dir_.File("hf");
  std::filesystem::create_directory(hf);
  const TensorType* type = FindTensorType("float32");
  const auto writer = MakeHfWriter(hf, {{"w", type, {3}, 12}, {"v", type, {1}, 4}}, 100, "{}");
  ASSERT_TRUE(writer.ok()) << writer.status();
  ASSERT_TRUE((*writer)->Write(0, tensors[1].numbers.data()).ok());
  ASSERT_TRUE((*writer)->Write(1, tensors[0].numbers.data()).ok());
  ASSERT_TRUE((*writer)->Finish().ok());
  const Comparison comparison = Compared(dcp, hf);
  ASSERT_EQ(comparison.differences.size(), 1u);
  EXPECT_EQ(comparison.differences[0].name, "iteration");
  EXPECT_EQ(comparison.differences[0].first, "7");
  EXPECT_EQ(comparison.equal, 2);
}

// One model with the names and layouts of several programs; the elements of each parameter are 0, 1, 2 ...
class CompareModelTest : public CompareTest {
 protected:
  std::vector<TestTensor> Of(const ModelConfig& model, Naming naming, const std::string& before = "") {
    std::map<std::string, TestTensor> tensors;
    for (const NamedParam& param : ParamsOf(model, naming)) {
      TestTensor& tensor = tensors[param.theirs];
      if (tensor.numbers.empty())
        tensor = MakeTestTensor(before + param.theirs, "float32", param.TheirShape());
      auto* numbers = reinterpret_cast<float*>(tensor.numbers.data());
      int64_t count = 1;
      for (const int64_t size : param.shape) count *= size;
      std::vector<float> ours(count);
      std::iota(ours.begin(), ours.end(), 0.f);
      if (param.rearrangement != Rearrangement::kNone) {
        Rearrange(param.rearrangement, /*to_ours=*/false, param.shape[0], param.shape[1], HeadRows(model), 4,
                  reinterpret_cast<const char*>(ours.data()), tensor.numbers.data());
      } else if (param.runs.empty()) {
        std::copy(ours.begin(), ours.end(), numbers);
      }
      for (const SharedRun& run : param.runs) {
        std::copy_n(ours.begin() + run.ours, run.numbers, numbers + run.theirs);
      }
    }
    std::vector<TestTensor> written;
    for (auto& [name, tensor] : tensors) written.push_back(std::move(tensor));
    return written;
  }

  std::string WriteHf(const std::string& name, const std::vector<TestTensor>& tensors) {
    std::vector<StoredTensor> stored;
    for (const TestTensor& tensor : tensors) {
      stored.push_back({tensor.name, tensor.type, tensor.shape, static_cast<int64_t>(tensor.numbers.size())});
    }
    std::filesystem::create_directory(dir_.File(name));
    const auto writer = MakeHfWriter(dir_.File(name), stored, 1 << 20, "{}");
    EXPECT_TRUE(writer.ok()) << writer.status();
    for (size_t i = 0; i < tensors.size(); ++i) {
      EXPECT_TRUE((*writer)->Write(i, tensors[i].numbers.data()).ok());
    }
    EXPECT_TRUE((*writer)->Finish().ok());
    return dir_.File(name);
  }
};

TEST_F(CompareModelTest, IgnoresNamesAndLayoutsOfModel) {
  const std::string native = Write("native", Of(OddGpt2(), Naming::kOurs, kNativePrefix), 2);
  const std::string hf = WriteHf("hf", Of(OddGpt2(), Naming::kTransformers));
  const Comparison same = Compared(native, hf, OddGpt2());
  EXPECT_TRUE(same.of_parameters);
  EXPECT_THAT(same.differences, IsEmpty());
  EXPECT_EQ(same.equal, static_cast<int64_t>(ParamsOf(OddGpt2(), Naming::kOurs).size()));
  EXPECT_THAT(same.left_out_first, ElementsAre("iteration"));
  EXPECT_THAT(same.left_out_second, IsEmpty());
  EXPECT_FALSE(Compared(native, hf).differences.empty()) << "where nobody knows which model it is";
}

TEST_F(CompareModelTest, ComparesPartsOfMegatronTensors) {
  const std::string hf = WriteHf("hf", Of(OddLlama(), Naming::kTransformers));
  for (const Naming naming : {Naming::kMegatron, Naming::kMegatronLayers, Naming::kTorchtitan}) {
    const std::string name = std::to_string(static_cast<int>(naming));
    const Comparison same = Compared(Write(name, Of(OddLlama(), naming)), hf, OddLlama());
    EXPECT_TRUE(same.of_parameters);
    EXPECT_THAT(same.differences, IsEmpty()) << name;
  }
}

TEST_F(CompareModelTest, NamesParametersInOurNaming) {
  std::vector<TestTensor> native = Of(OddLlama(), Naming::kOurs, kNativePrefix);
  native.push_back(MakeTestTensor("optimizer.state.exp_avg", "float32", {3}));
  auto* numbers = reinterpret_cast<float*>(native[0].numbers.data());
  numbers[2] += 8, numbers[3] -= 0.5;
  std::vector<TestTensor> theirs = Of(OddLlama(), Naming::kTransformers);
  for (TestTensor& tensor : theirs) {  // Small integers, which bf16 (the upper half) represents.
    std::string halves;
    for (size_t i = 2; i < tensor.numbers.size(); i += 4) halves.append(tensor.numbers, i, 2);
    tensor.numbers = halves;
    tensor.type = FindTensorType("bfloat16");
  }
  const Comparison found = Compared(Write("native", native), WriteHf("hf", theirs), OddLlama());
  ASSERT_EQ(found.differences.size(), 1u) << "the type is none";
  const TensorDifference& one = found.differences[0];
  EXPECT_EQ(kNativePrefix + one.name, native[0].name);
  EXPECT_EQ(one.numbers, 2);
  EXPECT_EQ(one.largest, 8);
  EXPECT_EQ(one.first, "float32 " + ShapeText(native[0].shape));
  EXPECT_EQ(one.second, "bfloat16 " + ShapeText(native[0].shape));
  EXPECT_THAT(found.left_out_first, ElementsAre("optimizer.state.exp_avg", "iteration"));
}

TEST_F(CompareModelTest, ComparesIncompleteModelByName) {
  std::vector<TestTensor> theirs = Of(OddLlama(), Naming::kTransformers);
  theirs.erase(theirs.begin());
  const Comparison found = Compared(Write("native", Of(OddLlama(), Naming::kOurs, kNativePrefix)),
                                    WriteHf("hf", theirs), OddLlama());
  EXPECT_FALSE(found.of_parameters);
  EXPECT_THAT(found.not_of_model, HasSubstr("lm_head.weight: is missing"));
  EXPECT_FALSE(found.differences.empty());
}

}  // namespace
}  // namespace fsdpd
