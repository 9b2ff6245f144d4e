// Merged weights; tests/parity compares with PEFT's.
#include "fsdp/checkpoint/convert/lora_merge.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <limits>

#include "base/temp_dir.h"
#include "fsdp/checkpoint/hf/hf_store.h"
#include "fsdp/checkpoint/names/adapter_names.h"
#include "fsdp/plan/spec/testing/small_models.h"

namespace fsdpd {
namespace {

using ::testing::HasSubstr;

class LoraMergeTest : public ::testing::Test {
 protected:
  LoraMergeTest() {
    lora_.rank = 2;
    lora_.alpha = 3;
    lora_.targets = {"layer.0.attention.wq"};
    for (const NamedParam& param : AdapterParamsOf(SmallLlama(), lora_)) {
      tensors_.push_back({param.theirs, FindTensorType("float32"), param.shape,
                          param.elements() * static_cast<int64_t>(sizeof(float))});
    }
  }

  // Element i of every tensor is i + 1.
  absl::StatusOr<std::unique_ptr<LoraMerge>> Opened() {
    const std::string directory = dir_.File(std::to_string(++written_));
    std::filesystem::create_directory(directory);
    const auto writer =
        MakeHfWriter(directory, tensors_, std::numeric_limits<int64_t>::max(), "{}", {}, kPeftNames);
    EXPECT_TRUE(writer.ok()) << writer.status();
    for (size_t i = 0; i < tensors_.size(); ++i) {
      std::vector<float> numbers(tensors_[i].numbers());
      for (size_t n = 0; n < numbers.size(); ++n) numbers[n] = static_cast<float>(n + 1);
      EXPECT_TRUE((*writer)->Write(i, numbers.data()).ok());
    }
    EXPECT_TRUE((*writer)->Finish().ok());
    return LoraMerge::Open(directory, SmallLlama(), lora_);
  }

  std::string ErrorOf() { return std::string(Opened().status().message()); }

  TempDir dir_;
  int written_ = 0;
  LoraConfig lora_;
  std::vector<StoredTensor> tensors_;
};

TEST_F(LoraMergeTest, AddsScaledProduct) {
  const auto merge = Opened();
  ASSERT_TRUE(merge.ok()) << merge.status();
  EXPECT_TRUE((*merge)->Has("layer.0.attention.wq"));
  EXPECT_FALSE((*merge)->Has("layer.1.attention.wq"));
  const int64_t inputs = tensors_[0].shape[1], outputs = tensors_[1].shape[0];
  std::vector<float> weights(outputs * inputs, 0.5f);
  (*merge)->AddTo("layer.0.attention.wq", weights.data());
  for (int64_t row = 0; row < outputs; ++row) {
    for (int64_t i = 0; i < inputs; ++i) {
      const auto b = static_cast<float>(2 * row + 1), a = static_cast<float>(i + 1);
      const float sum = b * a + (b + 1) * (a + static_cast<float>(inputs));
      EXPECT_EQ(weights[row * inputs + i], 0.5f + 1.5f * sum) << row << " " << i;
    }
  }
}

TEST_F(LoraMergeTest, ChecksumDependsOnScale) {
  const uint32_t one = (*Opened())->crc32();
  EXPECT_EQ((*Opened())->crc32(), one);
  lora_.alpha = 4;
  EXPECT_NE((*Opened())->crc32(), one);
}

TEST_F(LoraMergeTest, RejectsWhatIsNotAnAdapterOfTheModel) {
  const std::vector<StoredTensor> whole = tensors_;
  tensors_.resize(1);
  EXPECT_THAT(ErrorOf(), HasSubstr("layer.0.attention.wq: has only one of the adapter's matrices"));
  tensors_ = whole;
  tensors_[0].name = "base_model.model.model.layers.9.self_attn.q_proj.lora_A.weight";
  EXPECT_THAT(ErrorOf(), HasSubstr("has only one of the adapter's matrices"));
  tensors_ = whole;
  tensors_.push_back({"base_model.model.lm_head.weight", whole[0].type, {1}, 4});
  EXPECT_THAT(ErrorOf(), HasSubstr("lm_head.weight: is not an adapter of the model"));
  tensors_.erase(tensors_.begin(), tensors_.begin() + 2);
  EXPECT_THAT(ErrorOf(), HasSubstr("has no adapters"));
  tensors_ = whole;
  lora_.rank = 4;
  EXPECT_THAT(ErrorOf(), HasSubstr("has another shape than the model's"));
}

}  // namespace
}  // namespace fsdpd
