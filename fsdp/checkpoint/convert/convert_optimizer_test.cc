// Conversion of optimizer state between native checkpoints and torch_dist. tests/parity covers compatibility
// with Megatron-Core itself.
#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_replace.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <utility>

#include "base/temp_dir.h"
#include "fsdp/checkpoint/convert/convert.h"
#include "fsdp/checkpoint/convert/megatron_files.h"
#include "fsdp/checkpoint/dcp/dcp_reader.h"
#include "fsdp/checkpoint/dcp/dcp_store.h"
#include "fsdp/checkpoint/format/pickle_writer.h"
#include "fsdp/checkpoint/format/portable_values.h"
#include "fsdp/checkpoint/format/torch_save.h"
#include "fsdp/checkpoint/names/job_keys.h"
#include "fsdp/checkpoint/names/param_match.h"
#include "fsdp/checkpoint/names/tensor_names.h"
#include "fsdp/checkpoint/testing/small_checkpoint.h"
#include "fsdp/plan/spec/testing/small_models.h"

namespace fsdpd {
namespace {

namespace fs = std::filesystem;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TestTensor Scalar(const std::string& name, float number) {
  return {name, FindTensorType("float32"), {}, std::string(reinterpret_cast<const char*>(&number), 4)};
}

DcpSmall Value(const std::string& name, const PortableValue& value) {
  PickleWriter writer;
  WritePortable(value, &writer);
  return {name, TorchSaved(writer.Take())};
}

// By name: type, shape and data of tensors, and the pickle of values.
std::map<std::string, std::string> ContentsOf(const std::string& directory) {
  std::map<std::string, std::string> contents;
  const auto reader = DcpReader::Open(directory);
  EXPECT_TRUE(reader.ok()) << reader.status();
  if (!reader.ok()) return contents;
  for (size_t i = 0; i < (*reader)->tensors().size(); ++i) {
    const StoredTensor& tensor = (*reader)->tensors()[i];
    std::string numbers(tensor.bytes, '\0');
    EXPECT_TRUE((*reader)->Read(i, numbers.data()).ok());
    contents[tensor.name] = absl::StrCat(tensor.type->name, ShapeText(tensor.shape), numbers);
  }
  for (const DcpValue& value : (*reader)->index().values) {
    const auto pickle = (*reader)->ReadValue(value);
    const std::optional<PortableValue> kept = pickle.ok() ? ToPortable(pickle->root()) : std::nullopt;
    contents[value.name] = kept.has_value() ? Value("", *kept).record : "another";
  }
  return contents;
}

std::vector<std::string> NamesThatDiffer(const std::map<std::string, std::string>& a,
                                         const std::map<std::string, std::string>& b) {
  std::vector<std::string> names;
  for (const auto& [name, content] : a) {
    const auto found = b.find(name);
    if (found == b.end() || found->second != content) names.push_back(name);
  }
  for (const auto& [name, content] : b) {
    if (a.count(name) == 0) names.push_back(name);
  }
  return names;
}

class ConvertOptimizerTest : public ::testing::Test {
 protected:
  ConvertOptimizerTest() {
    for (const NamedParam& param : ParamsOf(SmallLlamaWithAll(), Naming::kOurs)) {
      tensors_.push_back(MakeTestTensor(MainKey(param.ours), "float32", param.shape));
      for (const char* moment : {"exp_avg", "exp_avg_sq"})
        tensors_.push_back(MakeTestTensor(OptimizerKey(param.ours, moment), moment_type_, param.shape));
      tensors_.push_back(Scalar(OptimizerKey(param.ours, "step"), 40));
    }
    values_ = {{"iteration", {int64_t{42}}},
               {"checkpoint_version", {3.0}},
               {"opt_param_scheduler.num_steps", {int64_t{336}}},
               {"fsdpd.job", {std::string("7")}},
               {"fsdpd.spec", {std::string("{\"name\": \"x\"}")}},
               {"fsdpd.samples", {int64_t{336}}},
               {"fsdpd.steps_taken", {int64_t{40}}},
               {"fsdpd.loss_scale", {1.0}},
               {"fsdpd.grad_norms", {std::vector<PortableValue>{{0.5}, {std::monostate()}}}},
               {"optimizer.param_to_group_meta.module.module.module.head.norm.weight_decay", {0.0}}};
  }

  void Write(const std::string& directory, const std::vector<TestTensor>& tensors,
             const PortableValues& values) {
    fs::create_directory(directory);
    std::vector<DcpPiece> pieces;
    for (const TestTensor& tensor : tensors)
      pieces.push_back({tensor.name,
                        tensor.type,
                        tensor.shape,
                        {std::vector<int64_t>(tensor.shape.size()), tensor.shape}});
    std::vector<DcpSmall> small;
    for (const auto& [name, value] : values) small.push_back(Value(name, value));
    const auto writer = MakeDcpWriter(directory, pieces, 1 << 20, small);
    ASSERT_TRUE(writer.ok()) << writer.status();
    for (size_t i = 0; i < tensors.size(); ++i)
      ASSERT_TRUE((*writer)->Write(i, tensors[i].numbers.data()).ok());
    ASSERT_TRUE((*writer)->Finish().ok());
  }

  absl::StatusOr<ConversionResult> Run(const std::string& source, const std::string& target, StoreFormat to) {
    conversion_.source = dir_.File(source);
    conversion_.target = dir_.File(target);
    conversion_.model = SmallLlamaWithAll();
    conversion_.to = to;
    conversion_.file_bytes = 3000;
    conversion_.config = "{}\n";
    ConversionProgress progress;
    return Convert(
        conversion_, 2, [] { return false; }, &progress);
  }

  // "WHERE WHAT" for each violation; fails if there are none.
  std::vector<std::string> ViolationsOf(const std::string& source, StoreFormat to) {
    const auto done = Run(source, "refused", to);
    EXPECT_TRUE(done.ok()) << done.status();
    std::vector<std::string> told;
    for (const DcpViolation& violation : done->violations)
      told.push_back(absl::StrCat(violation.where, ": ", violation.what));
    EXPECT_FALSE(fs::exists(dir_.File("refused")));
    return told;
  }

  // The torch_dist form of the native tensors, by Megatron-Core's rules. `type`: of the model's tensors.
  std::vector<TestTensor> MegatronsOf(const char* main) {
    std::map<std::string, TestTensor> made;
    const std::vector<NamedParam> ours = ParamsOf(SmallLlamaWithAll(), Naming::kOurs);
    const std::vector<NamedParam> theirs = ParamsOf(SmallLlamaWithAll(), Naming::kMegatron);
    for (size_t i = 0; i < theirs.size(); ++i) {
      for (const std::string what : {"", "exp_avg", "exp_avg_sq", main}) {
        const std::string from =
            what.empty() || what == main ? MainKey(ours[i].ours) : OptimizerKey(ours[i].ours, what);
        const auto tensor = std::find_if(tensors_.begin(), tensors_.end(),
                                         [&](const TestTensor& one) { return one.name == from; });
        const std::string name =
            what.empty() ? theirs[i].theirs : absl::StrCat("optimizer.state.", what, ".", theirs[i].theirs);
        const std::string type(tensor->type->name);
        TestTensor& whole =
            made.try_emplace(name, MakeTestTensor(name, type.c_str(), theirs[i].TheirShape())).first->second;
        const int64_t width = tensor->type->bytes;
        if (theirs[i].runs.empty()) whole.numbers = tensor->numbers;
        for (const SharedRun& run : theirs[i].runs)
          whole.numbers.replace(run.theirs * width, run.numbers * width, tensor->numbers, run.ours * width,
                                run.numbers * width);
      }
    }
    std::vector<TestTensor> tensors;
    for (auto& [name, tensor] : made) tensors.push_back(std::move(tensor));
    return tensors;
  }

  // Writes a checkpoint like Megatron-Core: DCP and its two additional files.
  void WriteMegatrons(const std::string& directory, const char* main, const MegatronCommon& common) {
    Write(directory, MegatronsOf(main), {});
    ASSERT_TRUE(WriteMegatronFiles(directory, common, Adam()).ok());
  }

  static AdamSettings Adam() { return {1e-3, 1e-4, 0.9, 0.95, 1e-8, 0.1, "cosine", 80, 8000}; }

  const char* const moment_type_ = "float32";
  TempDir dir_;
  std::vector<TestTensor> tensors_;
  PortableValues values_;
  ConversionOptions conversion_ = [] {
    ConversionOptions conversion;
    conversion.type = FindTensorType("float32");
    conversion.adam = Adam();
    return conversion;
  }();
};

TEST_F(ConvertOptimizerTest, RoundTripPreservesAllBits) {
  Write(dir_.File("native"), tensors_, values_);
  const auto there = Run("native", "megatrons", StoreFormat::kTorchDist);
  ASSERT_TRUE(there.ok()) << there.status();
  ASSERT_THAT(there->violations, IsEmpty());
  EXPECT_THAT(there->left_out, IsEmpty());
  EXPECT_TRUE(ReadBack(dir_.File("megatrons"), MegatronsOf("param")).ok());
  const auto back = Run("megatrons", "back", StoreFormat::kDcp);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_THAT(back->left_out, IsEmpty());
  EXPECT_THAT(NamesThatDiffer(ContentsOf(dir_.File("native")), ContentsOf(dir_.File("back"))), IsEmpty());
}

// Megatron-Core computes with a bf16 model, but trains the main parameters next to it.
TEST_F(ConvertOptimizerTest, PrefersMainParametersToRoundedOnes) {
  Write(dir_.File("native"), tensors_, values_);
  conversion_.type = FindTensorType("bfloat16");
  ASSERT_TRUE(Run("native", "megatrons", StoreFormat::kTorchDist).ok());
  conversion_.type = FindTensorType("float32");
  ASSERT_TRUE(Run("megatrons", "back", StoreFormat::kDcp).ok());
  EXPECT_THAT(NamesThatDiffer(ContentsOf(dir_.File("native")), ContentsOf(dir_.File("back"))), IsEmpty());
  // Also without optimizer state.
  conversion_.optimizer = false;
  const auto alone = Run("megatrons", "alone", StoreFormat::kDcp);
  ASSERT_TRUE(alone.ok()) << alone.status();
  EXPECT_THAT(alone->left_out, Contains("optimizer.state.exp_avg.embedding.word_embeddings.weight"));
  auto whole = ContentsOf(dir_.File("native"));
  const auto parameters = ContentsOf(dir_.File("alone"));
  for (const auto& [name, content] : parameters) EXPECT_EQ(content, whole[name]) << name;
  EXPECT_EQ(parameters.count("iteration"), 0u) << "a job would look for the optimizer's state";
  EXPECT_EQ(parameters.size(), ParamsOf(SmallLlamaWithAll(), Naming::kOurs).size() + 1) << "and the spec";
}

TEST_F(ConvertOptimizerTest, ReadsStateOfMegatronOptimizers) {
  for (const char* main : {"param", "fp32_param"}) {
    const std::string directory = absl::StrCat("megatrons.", main), out = absl::StrCat("out.", main);
    WriteMegatrons(dir_.File(directory), main, {9, 72, 8, {}});
    conversion_.spec = "{\"model\": {}}";
    const auto done = Run(directory, out, StoreFormat::kDcp);
    ASSERT_TRUE(done.ok()) << done.status();
    ASSERT_THAT(done->violations, IsEmpty());
    auto contents = ContentsOf(dir_.File(out));
    for (const TestTensor& tensor : tensors_) {
      if (absl::EndsWith(tensor.name, ".step")) continue;
      EXPECT_EQ(contents[tensor.name],
                absl::StrCat(tensor.type->name, ShapeText(tensor.shape), tensor.numbers))
          << tensor.name;
    }
    const float steps = 8;
    EXPECT_EQ(contents[OptimizerKey("head.norm", "step")],
              absl::StrCat("float32[]", std::string(reinterpret_cast<const char*>(&steps), 4)));
    EXPECT_EQ(contents["iteration"], Value("", {int64_t{9}}).record);
    EXPECT_EQ(contents["opt_param_scheduler.num_steps"], Value("", {int64_t{72}}).record);
    EXPECT_EQ(contents["fsdpd.samples"], Value("", {int64_t{72}}).record);
    EXPECT_EQ(contents["fsdpd.steps_taken"], Value("", {int64_t{8}}).record);
    EXPECT_EQ(contents["fsdpd.spec"], Value("", {conversion_.spec}).record);
  }
}

TEST_F(ConvertOptimizerTest, RejectsBucketedState) {
  std::vector<TestTensor> tensors = MegatronsOf("param");
  tensors.erase(
      std::remove_if(tensors.begin(), tensors.end(),
                     [](const TestTensor& one) { return absl::StartsWith(one.name, "optimizer."); }),
      tensors.end());
  const std::vector<TestTensor> model = tensors;
  const std::string bucket =
      "optimizer.distributed.dp_group_idx_0.gbuf_idx_0.dtype_(torch.bfloat16, "
      "torch.float32).bucket_idx_0.exp_avg";
  tensors.push_back(MakeTestTensor(bucket, "float32", {640}));
  Write(dir_.File("buckets"), tensors, {});
  ASSERT_TRUE(WriteMegatronFiles(dir_.File("buckets"), {}, std::nullopt).ok());
  EXPECT_THAT(
      ViolationsOf("buckets", StoreFormat::kDcp),
      ElementsAre(::testing::AllOf(HasSubstr(bucket), HasSubstr("--dist-ckpt-optim-fully-reshardable"),
                                   HasSubstr("--no-optimizer"))));
  // The older form has no tensor for it.
  Write(dir_.File("gathered"), model,
        {{"optimizer.distributed.dp_group_idx_0.param_state/shard_0_1", {int64_t{1}}}});
  ASSERT_TRUE(WriteMegatronFiles(dir_.File("gathered"), {}, std::nullopt).ok());
  EXPECT_THAT(ViolationsOf("gathered", StoreFormat::kDcp),
              ElementsAre(HasSubstr("param_state/shard_0_1: optimizer state in the buckets")));
  conversion_.optimizer = false;
  const auto alone = Run("buckets", "alone", StoreFormat::kDcp);
  ASSERT_TRUE(alone.ok()) << alone.status();
  EXPECT_THAT(alone->left_out, ElementsAre(bucket));
  conversion_.optimizer = true;
  EXPECT_TRUE(Run("buckets", "hf", StoreFormat::kHf).ok()) << "which has no place for it anyway";
}

TEST_F(ConvertOptimizerTest, RejectsPartialState) {
  std::vector<TestTensor> tensors = tensors_;
  const auto find = [&](const std::string& name) {
    return std::find_if(tensors.begin(), tensors.end(),
                        [&](const TestTensor& one) { return one.name == name; });
  };
  tensors.erase(find(OptimizerKey("head.norm", "exp_avg_sq")));
  find(OptimizerKey("head.output", "exp_avg"))->shape = {8, 32};
  *find(OptimizerKey("embedding.weight", "step")) = Scalar(OptimizerKey("embedding.weight", "step"), 39);
  PortableValues values = values_;
  values.erase("iteration");
  Write(dir_.File("native"), tensors, values);
  EXPECT_THAT(
      ViolationsOf("native", StoreFormat::kDcp),
      ElementsAre(HasSubstr("head.output.exp_avg: is float32 [8, 32], but its parameter has shape [32, 8]"),
                  HasSubstr("head.norm.exp_avg_sq: is missing, but exp_avg exists"),
                  HasSubstr("step: is 40, but another parameter's is 39")));
}

TEST_F(ConvertOptimizerTest, RejectsStateThatMegatronCannotResume) {
  Write(dir_.File("native"), tensors_, values_);
  conversion_.adam.reset();
  EXPECT_THAT(ViolationsOf("native", StoreFormat::kTorchDist), ElementsAre(HasSubstr("add --spec JOB.YAML")));
  conversion_.adam = Adam();
  std::vector<TestTensor> sgd, frozen;
  for (const TestTensor& tensor : tensors_) {
    if (!absl::EndsWith(tensor.name, "exp_avg_sq")) sgd.push_back(tensor);
    sgd.back().name = absl::StrReplaceAll(sgd.back().name, {{"exp_avg", "momentum_buffer"}});
    if (!absl::StrContains(tensor.name, "module.module.module.layer.1.")) frozen.push_back(tensor);
  }
  Write(dir_.File("sgd"), sgd, values_);
  EXPECT_THAT(ViolationsOf("sgd", StoreFormat::kTorchDist), ElementsAre(HasSubstr("not supported with SGD")));
  ASSERT_TRUE(Run("sgd", "sgd.out", StoreFormat::kDcp).ok());
  EXPECT_THAT(NamesThatDiffer(ContentsOf(dir_.File("sgd")), ContentsOf(dir_.File("sgd.out"))), IsEmpty());
  // A stacked tensor of all layers cannot have moments for only some.
  Write(dir_.File("frozen"), frozen, values_);
  EXPECT_THAT(ViolationsOf("frozen", StoreFormat::kTorchDist),
              Contains(HasSubstr(
                  "optimizer.state.exp_avg.decoder.layers.mlp.linear_fc1.weight: would include 2 frozen")));
  ASSERT_TRUE(Run("frozen", "frozen.out", StoreFormat::kDcp).ok());
  EXPECT_THAT(NamesThatDiffer(ContentsOf(dir_.File("frozen")), ContentsOf(dir_.File("frozen.out"))),
              IsEmpty());
}

TEST_F(ConvertOptimizerTest, PreservesTypeOfMoments) {
  for (TestTensor& tensor : tensors_) {
    if (absl::StrContains(tensor.name, "exp_avg"))
      tensor = MakeTestTensor(tensor.name, "bfloat16", tensor.shape);
  }
  Write(dir_.File("native"), tensors_, values_);
  ASSERT_TRUE(Run("native", "megatrons", StoreFormat::kTorchDist).ok());
  EXPECT_TRUE(ReadBack(dir_.File("megatrons"), MegatronsOf("param")).ok());
  ASSERT_TRUE(Run("megatrons", "back", StoreFormat::kDcp).ok());
  EXPECT_THAT(NamesThatDiffer(ContentsOf(dir_.File("native")), ContentsOf(dir_.File("back"))), IsEmpty());
}

}  // namespace
}  // namespace fsdpd
