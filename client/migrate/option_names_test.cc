#include "client/migrate/option_names.h"

#include <gtest/gtest.h>

namespace fsdpd {
namespace {

std::string Flag(const std::string& written) {
  const OptionName name = NameOfFlag(written);
  return (name.negated ? "!" : "") + name.name;
}

TEST(OptionNames, ResolvesNegatedFlags) {
  EXPECT_EQ(Flag("bf16"), "bf16");
  EXPECT_EQ(Flag("no_save_optim"), "!save_optim");
  EXPECT_EQ(Flag("disable_tp_comm_split_ag"), "!tp_comm_split_ag");
  EXPECT_EQ(Flag("disable_bias_linear"), "!add_bias_linear");
  EXPECT_EQ(Flag("no_rope_fusion"), "!apply_rope_fusion");
  EXPECT_EQ(Flag("no_use_nccl_ub"), "!nccl_ub") << "of the other name too";
}

// Regression: --no-rope-freq 4 was read as rope_freq: false, and its 4 was dropped.
TEST(OptionNames, KeepsNamesThatStartLikeNegation) {
  EXPECT_EQ(Flag("no_rope_freq"), "no_rope_freq");
  EXPECT_EQ(Flag("no_weight_decay_cond_type"), "no_weight_decay_cond_type");
  EXPECT_EQ(Flag("disable_jit_fuser"), "disable_jit_fuser");
}

// Regression: tokenizer.tensor_model_parallel_size, which is always 1, overrode the model's.
TEST(OptionNames, PrefixesNamesOfSpecialSections) {
  EXPECT_EQ(NameOfKey("model", "tensor_model_parallel_size").name, "tensor_model_parallel_size");
  EXPECT_EQ(NameOfKey("tokenizer", "tensor_model_parallel_size").name,
            "tokenizer_tensor_model_parallel_size");
  EXPECT_EQ(NameOfKey("tokenizer", "tokenizer_type").name, "tokenizer_type");
  EXPECT_EQ(NameOfKey("model", "layernorm_epsilon").name, "norm_epsilon");
  EXPECT_EQ(NameOfKey("model", "no_rope_freq").name, "no_rope_freq");
}

}  // namespace
}  // namespace fsdpd
