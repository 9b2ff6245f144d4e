#include "fsdp/checkpoint/hf/peft_config.h"

#include <absl/strings/str_replace.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace fsdpd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

LoraConfig Lora() {
  LoraConfig lora;
  lora.rank = 4;
  lora.alpha = 6;
  lora.base_model = "/models/\"quoted\"";
  return lora;
}

std::vector<std::string> Differences(const std::string& from, const std::string& to, const LoraConfig& lora) {
  const std::string text = MakePeftConfig(Lora(), {"k_proj", "q_proj"});
  const std::string changed = absl::StrReplaceAll(text, {{from, to}});
  EXPECT_TRUE(from.empty() || changed != text);
  const auto config = ReadPeftConfig(changed);
  EXPECT_TRUE(config.ok()) << config.status();
  return DifferencesOf(*config, lora);
}

TEST(PeftConfig, RoundTrips) {
  const std::string text = MakePeftConfig(Lora(), {"k_proj", "q_proj"});
  EXPECT_THAT(text, HasSubstr("\"target_modules\": [\n    \"k_proj\",\n    \"q_proj\"\n  ]"));
  EXPECT_THAT(text, HasSubstr("\"base_model_name_or_path\": \"/models/\\\"quoted\\\"\""));
  EXPECT_THAT(Differences("", "", Lora()), IsEmpty());
}

TEST(PeftConfig, ComparesScales) {
  LoraConfig lora = Lora();
  lora.alpha = 3;
  lora.rank_stabilized = true;  // 3 / sqrt(4) is 6 / 4.
  EXPECT_THAT(Differences("", "", lora), IsEmpty());
  lora.alpha = 4;
  EXPECT_THAT(Differences("", "", lora),
              ElementsAre(HasSubstr("(got 1.5, want 2); set train.lora.alpha: 6")));
  lora.rank = 8;
  EXPECT_THAT(Differences("", "", lora), ElementsAre("r: differs from train.lora.rank (got 4, want 8)"));
}

TEST(PeftConfig, RejectsOtherMethods) {
  EXPECT_THAT(Differences("\"LORA\"", "\"IA3\"", Lora()),
              ElementsAre("peft_type: not supported (got IA3, want LORA)"));
  EXPECT_THAT(Differences("\"use_dora\": false", "\"use_dora\": true", Lora()),
              ElementsAre("use_dora: not supported"));
  EXPECT_THAT(Differences("\"bias\": \"none\"", "\"bias\": \"all\"", Lora()),
              ElementsAre("bias: not supported"));
  EXPECT_THAT(Differences("\"bias\": \"none\"", "\"modules_to_save\": [\"lm_head\"]", Lora()),
              ElementsAre("modules_to_save: not supported"));
  EXPECT_THAT(Differences("\"bias\": \"none\"", "\"rank_pattern\": {\"q_proj\": 8}", Lora()),
              ElementsAre("rank_pattern: not supported"));
  EXPECT_THAT(Differences("\"init_lora_weights\": true", "\"init_lora_weights\": \"pissa_niter_4\"", Lora()),
              ElementsAre("init_lora_weights: pissa_niter_4 is not supported"));
  EXPECT_THAT(Differences("\"init_lora_weights\": true", "\"init_lora_weights\": \"gaussian\"", Lora()),
              IsEmpty());
  EXPECT_THAT(Differences("\"bias\": \"none\"", "\"alora_invocation_tokens\": [1]", Lora()),
              ElementsAre("alora_invocation_tokens: not supported"));
  EXPECT_THAT(Differences("\"bias\": \"none\"", "\"rank_pattern\": {}, \"modules_to_save\": null", Lora()),
              IsEmpty());
  EXPECT_TRUE(absl::IsDataLoss(ReadPeftConfig("{").status()));
}

TEST(PeftConfig, RejectsInvalidNumbers) {
  EXPECT_THAT(Differences("\"r\": 4", "\"r\": \"4\"", Lora()), ElementsAre("r: is not a number"));
  EXPECT_THAT(Differences("\"r\": 4", "\"r\": 1e300", Lora()), ElementsAre("r: invalid rank 1e+300"));
  EXPECT_THAT(Differences("\"lora_alpha\": 6", "\"lora_alpha\": null", Lora()),
              ElementsAre("lora_alpha: is not a number"));
  EXPECT_THAT(Differences("\"lora_alpha\": 6", "\"lora_alpha\": 0", Lora()),
              ElementsAre("lora_alpha: invalid number 0"));
  EXPECT_THAT(Differences("\"use_rslora\": false", "\"use_rslora\": \"true\"", Lora()),
              ElementsAre("use_rslora: is a text (want true or false)"));
  EXPECT_EQ(ReadPeftConfig(R"({"peft_type": "LORA"})")->lora.alpha, 8) << "PEFT's default";
}

}  // namespace
}  // namespace fsdpd
