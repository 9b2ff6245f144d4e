#include "client/migrate/megatron_options.h"

#include <gtest/gtest.h>

namespace fsdpd {
namespace {

OptionKind Of(const std::string& name, std::vector<std::string> values = {}) {
  return KindOf({name, "--" + name, std::move(values), {}, false});
}

TEST(MegatronOptions, AreWithoutEffectNotSupportedOrUnknown) {
  EXPECT_EQ(Of("log_interval", {"10"}), OptionKind::kWithoutEffect);
  EXPECT_EQ(Of("wandb_project", {"x"}), OptionKind::kWithoutEffect) << "by its beginning";
  EXPECT_EQ(Of("apply_layernorm_1p"), OptionKind::kNotSupported);
  EXPECT_EQ(Of("mtp_num_layers", {"1"}), OptionKind::kNotSupported);
  EXPECT_EQ(Of("tomorrows_knob"), OptionKind::kUnknown);
}

// Bridge writes every setting, most of them as they are when nobody sets them.
TEST(MegatronOptions, WhatIsOffHasNoEffect) {
  for (const char* off : {"false", "None", "0", "0.0", ""}) {
    EXPECT_EQ(Of("mtp_num_layers", {off}), OptionKind::kWithoutEffect) << off;
  }
  EXPECT_EQ(Of("softmax_type", {"vanilla"}), OptionKind::kWithoutEffect);
  EXPECT_EQ(Of("softmax_type", {"learnable"}), OptionKind::kNotSupported);
  EXPECT_EQ(Of("mtp_loss_scaling_factor", {"0.1"}), OptionKind::kWithoutEffect) << "a name of its own wins";
}

}  // namespace
}  // namespace fsdpd
