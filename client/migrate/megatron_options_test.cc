#include "client/migrate/megatron_options.h"

#include <gtest/gtest.h>

namespace fsdpd {
namespace {

OptionKind Of(const std::string& name, std::vector<std::string> values = {}) {
  return KindOf({name, "--" + name, std::move(values), {}, false});
}

TEST(MegatronOptions, ClassifiesOptions) {
  EXPECT_EQ(Of("log_interval", {"10"}), OptionKind::kWithoutEffect);
  EXPECT_EQ(Of("wandb_project", {"x"}), OptionKind::kWithoutEffect) << "by a prefix entry";
  EXPECT_EQ(Of("container_image", {"x"}), OptionKind::kOfLauncher);
  EXPECT_EQ(Of("moe_shared_expert_gate"), OptionKind::kNotSupported) << "although moe_* is without effect";
  EXPECT_EQ(Of("mtp_num_layers", {"1"}), OptionKind::kNotSupported);
  EXPECT_EQ(Of("tomorrows_knob"), OptionKind::kUnknown);
  EXPECT_EQ(Of("moe_router_top_k"), OptionKind::kUnknown) << "misspelled after a known prefix";
  EXPECT_EQ(Of("fp8_recepie", {"tensorwise"}), OptionKind::kUnknown);
  EXPECT_EQ(Of("mlflow_run_id", {"7"}), OptionKind::kWithoutEffect) << "another word, not a misspelling";
}

// Megatron Bridge writes every setting, most of them with their default.
TEST(MegatronOptions, DefaultValuesHaveNoEffect) {
  for (const char* off : {"false", "None", "0", "0.0", ""}) {
    EXPECT_EQ(Of("mtp_num_layers", {off}), OptionKind::kWithoutEffect) << off;
  }
  EXPECT_EQ(Of("decoupled_weight_decay", {"True"}), OptionKind::kWithoutEffect) << "the default is on";
  EXPECT_EQ(Of("decoupled_weight_decay", {"false"}), OptionKind::kNotSupported);
  EXPECT_EQ(Of("sample_rate", {"1.0"}), OptionKind::kWithoutEffect) << "as a number";
  EXPECT_EQ(Of("window_size", {"128", "0"}), OptionKind::kNotSupported);
  EXPECT_EQ(Of("softmax_type", {"vanilla"}), OptionKind::kWithoutEffect);
  EXPECT_EQ(Of("softmax_type", {"learnable"}), OptionKind::kNotSupported);
  EXPECT_EQ(Of("mtp_loss_scaling_factor", {"0.1"}), OptionKind::kWithoutEffect) << "an exact entry wins";
}

TEST(MegatronOptions, DescribesUnsupportedAndSuggestsKnownNames) {
  EXPECT_EQ(DescribeUnsupported({"mtp_num_layers", "--mtp-num-layers", {"1"}, {}, false}),
            "multi-token prediction is not supported");
  EXPECT_EQ(SuggestOption({"num_layer", "--num-layer", {"32"}, {}, false}, {"num_layers"}), "--num-layers");
  EXPECT_EQ(SuggestOption({"moe_router_top_k", "--moe-router-top-k", {"2"}, {}, false}, {}),
            "--moe-router-topk");
  EXPECT_EQ(SuggestOption({"manual_gcc", "train.manual_gcc", {"1"}, {}, false}, {}), "manual_gc");
  EXPECT_EQ(SuggestOption({"quite_another_thing", "--quite-another-thing", {}, {}, false}, {"lr"}), "");
}

}  // namespace
}  // namespace fsdpd
