#include "client/migrate/megatron_precision.h"

#include <absl/strings/ascii.h>
#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "client/migrate/megatron_job.h"
#include "client/migrate/megatron_rules.h"
#include "fsdp/plan/rules/rules.h"

namespace fsdpd {
namespace {

struct Result {
  v1::Precision precision;
  std::set<std::string> rules;
  std::string warning;                    // The reason of gradient_types.
  std::map<std::string, int> lines = {};  // By rule.
};

Result Convert(const std::string& text) {
  Settings settings;
  v1::JobSpec job;
  EXPECT_TRUE(ReadSettings(text, "in", &settings).empty()) << text;
  LocatedViolations violations = CheckMegatron(&settings);
  const LocatedViolations more = ConvertMegatronJob(&settings, {}, "in", &job);
  violations.insert(violations.end(), more.begin(), more.end());
  Result result = {job.precision(), {}, ""};
  for (const LocatedViolation& located : violations) {
    result.rules.insert(located.violation.rule);
    result.lines[located.violation.rule] = located.place.line;
    if (located.violation.rule == "gradient_types") result.warning = located.violation.reason;
  }
  return result;
}

std::string Short(v1::DType type) { return v1::DType_Name(type).substr(6); }

// "FP32 BF16": dtypes of accumulation and reduction. A "?" marks the warning gradient_types, "~" the
// adjustment from fp16 to fp32.
std::string Gradients(const std::string& text) {
  const Result result = Convert(text);
  return absl::StrCat(Short(result.precision.main_grads()), " ", Short(result.precision.grad_comm()),
                      result.rules.count("gradient_types") > 0 ? " ?" : "",
                      result.rules.count("fp16_gradients") > 0 ? " ~" : "");
}

TEST(GradientsOfMegatron, UsesFp32GradientsWithBf16) {
  EXPECT_EQ(Gradients("--bf16"), "FP32 FP32");
  EXPECT_EQ(Gradients("--bf16 --use-distributed-optimizer"), "FP32 FP32");
  EXPECT_EQ(Gradients("--bf16 --use-megatron-fsdp"), "FP32 FP32 ?") << "0.19 follows its own flags only";
  EXPECT_EQ(Gradients("--bf16 --use-torch-fsdp2"), "BF16 BF16");
  const std::string warning = Convert("--bf16 --use-megatron-fsdp").warning;
  EXPECT_TRUE(absl::StrContains(warning, "0.18 and earlier: accumulated in fp32, reduced in fp32"))
      << warning;
  EXPECT_TRUE(absl::StrContains(warning, "0.19 and later: accumulated in bf16, reduced in bf16")) << warning;
}

TEST(GradientsOfMegatron, AppliesGradReduceInBf16) {
  EXPECT_EQ(Gradients("--bf16 --grad-reduce-in-bf16"), "BF16 BF16");
  EXPECT_EQ(Gradients("--bf16 --grad-reduce-in-bf16 --use-megatron-fsdp"), "BF16 BF16");
}

TEST(GradientsOfMegatron, AdjustsContradictoryFlags) {
  const std::string both = "--bf16 --grad-reduce-in-bf16 --accumulate-allreduce-grads-in-fp32";
  EXPECT_EQ(Gradients(both), "BF16 BF16");
  EXPECT_EQ(Convert(both).rules.count("grad_reduce_in_bf16_wins"), 1);
}

// Regression: gradient_types, loss_scale_hysteresis and loss_scale_without_fp16 were reported too.
TEST(GradientsOfMegatron, ReportsBf16WithFp16Once) {
  const std::string run = "--bf16 --use-megatron-fsdp ";
  EXPECT_EQ(Convert(run).rules.count("gradient_types"), 1);
  std::set<std::string> expected = Convert(run).rules;
  expected.erase("gradient_types");
  expected.insert("one_half_precision");
  const Result both = Convert(run + "--fp16 --hysteresis 2 --initial-loss-scale 4 --grad-reduce-in-bf16");
  EXPECT_EQ(both.rules, expected);
  EXPECT_FALSE(both.precision.has_loss_scale());
}

// Regression: each was reported at a line with `false`, or at one that the recipe overrides.
TEST(GradientsOfMegatron, PlacesBridgePrecisionErrorAtRequestingLine) {
  std::map<std::string, int> lines =
      Convert("mixed_precision: fp16_mixed\nmodel:\n  bf16: true\n  fp16: false\n").lines;
  EXPECT_EQ(lines["fp16_gradients"], 1);
  EXPECT_EQ(lines["mixed_precision_wins"], 3);
  lines = Convert(
              "mixed_precision: bf16_mixed\nmodel:\n  fp16: true\nddp:\n  use_megatron_fsdp: true\n"
              "  grad_reduce_in_fp32: false\n")
              .lines;
  EXPECT_EQ(lines["gradient_types"], 1);
  EXPECT_EQ(lines["mixed_precision_wins"], 3);
  lines = Convert("model:\n  fp16: true\noptimizer:\n  bf16: false\n  fp16: false\n").lines;
  EXPECT_EQ(lines["fp16_gradients"], 2);
  EXPECT_EQ(lines.count("mixed_precision_wins"), 0);
  lines = Convert("model:\n  bf16: true\n  fp16: true\noptimizer:\n  fp16: false\n").lines;
  EXPECT_EQ(lines["one_half_precision"], 3);
}

TEST(GradientsOfMegatron, ConvertsExplicitDtype) {
  const std::string fsdp = "--bf16 --use-megatron-fsdp ";
  EXPECT_EQ(Gradients(fsdp + "--megatron-fsdp-main-grads-dtype fp32 --megatron-fsdp-grad-comm-dtype fp32"),
            "FP32 FP32");
  EXPECT_EQ(Gradients(fsdp + "--megatron-fsdp-main-grads-dtype fp32"), "FP32 FP32");
  EXPECT_EQ(Gradients(fsdp + "--megatron-fsdp-main-grads-dtype bf16 --megatron-fsdp-grad-comm-dtype bf16"),
            "BF16 BF16 ?");
  EXPECT_EQ(Gradients(fsdp + "--megatron-fsdp-main-grads-dtype bf16"), "BF16 BF16 ?");
  EXPECT_EQ(Gradients(fsdp + "--megatron-fsdp-grad-comm-dtype bf16"), "FP32 BF16 ?");
  EXPECT_EQ(Gradients(fsdp + "--grad-reduce-in-bf16 --megatron-fsdp-main-grads-dtype fp32 "
                             "--megatron-fsdp-grad-comm-dtype bf16"),
            "FP32 BF16");
}

TEST(GradientsOfMegatron, ReadsBridgeMixedPrecision) {
  const std::string fsdp = "ddp: {use_megatron_fsdp: true}\n",
                    types = "{_target_: torch.bfloat16, _call_: false}";
  EXPECT_EQ(Gradients("mixed_precision: bf16_mixed"), "FP32 FP32");
  EXPECT_EQ(Gradients("mixed_precision: fp16_mixed"), "FP32 FP32 ~");
  EXPECT_EQ(Gradients("mixed_precision: {bf16: true}"), "FP32 FP32") << "its default";
  EXPECT_EQ(Gradients("mixed_precision: {bf16: true, grad_reduce_in_fp32: false}"), "BF16 BF16");
  EXPECT_EQ(Gradients("mixed_precision: {bf16: true, grad_reduce_in_fp32: false}\n"
                      "ddp: {grad_reduce_in_fp32: true}"),
            "BF16 BF16");
  EXPECT_EQ(Gradients("model: {bf16: true}\nddp: {grad_reduce_in_fp32: true}"), "FP32 FP32");
  EXPECT_EQ(Gradients("model: {bf16: true}"), "BF16 BF16");
  EXPECT_EQ(Gradients("mixed_precision: bf16_mixed\n" + fsdp), "FP32 FP32 ?");
  EXPECT_EQ(
      Gradients(
          "mixed_precision: bf16_mixed\nddp: {use_megatron_fsdp: true, megatron_fsdp_main_grads_dtype: " +
          types + ", megatron_fsdp_grad_comm_dtype: " + types + "}"),
      "BF16 BF16 ?");
}

TEST(GradientsOfMegatron, ResolvesAutoMainParamsToParamsDtype) {
  EXPECT_EQ(Convert("--bf16").precision.main_params(), v1::DTYPE_FP32);
  EXPECT_EQ(Convert("--bf16 --megatron-fsdp-main-params-dtype auto").precision.main_params(), v1::DTYPE_BF16);
  EXPECT_EQ(Convert("--megatron-fsdp-main-params-dtype auto").precision.main_params(), v1::DTYPE_FP32);
  EXPECT_EQ(Convert("mixed_precision: bf16_mixed\nddp: {megatron_fsdp_main_params_dtype: null}")
                .precision.main_params(),
            v1::DTYPE_BF16);
}

// Regression: fp16 silently became bf16.
TEST(GradientsOfMegatron, RejectsFp16MainGrads) {
  for (const char* half : {"--bf16", "--fp16", ""}) {
    for (const char* type : {"fp16", "fp64"}) {
      const std::string text =
          absl::StrCat("--num-layers 2 ", half, " --use-precision-aware-optimizer --main-grads-dtype ", type);
      EXPECT_EQ(Convert(text).rules.count("type_known"), 1) << text;
    }
  }
}

// Regression: the warning named fp16, which had become fp32 in the spec.
TEST(GradientsOfMegatron, WarningNamesDtypesOfSpec) {
  const Result result = Convert("--fp16 --grad-reduce-in-bf16 --use-megatron-fsdp");
  EXPECT_EQ(result.precision.main_grads(), v1::DTYPE_FP32);
  EXPECT_EQ(result.precision.grad_comm(), v1::DTYPE_FP32);
  EXPECT_TRUE(absl::StartsWith(result.warning, "gradients will be accumulated in fp32 and reduced in fp32; "))
      << result.warning;
}

// Regression: it was also reported as an adjustment of mixed_precision, which a command line does not have.
TEST(GradientsOfMegatron, RejectsExplicitFp16WithoutAdjustment) {
  const Result result = Convert("--bf16 --use-megatron-fsdp --megatron-fsdp-main-grads-dtype fp16");
  EXPECT_EQ(result.rules.count("fp16_gradients"), 0);
  EXPECT_EQ(result.rules.count("gradient_types"), 0);
  EXPECT_EQ(result.precision.main_grads(), v1::DTYPE_FP16);
  EXPECT_EQ(result.precision.grad_comm(), v1::DTYPE_FP32) << "one mistake, one error";
}

// Reference model of megatron/training/arguments.py and Megatron-FSDP's adapter for one command line.
struct Flags {
  std::string half, engine, main, comm, aware_main;  // Empty: not set.
  bool reduce_in_bf16 = false, accumulate = false;

  std::string Text() const {
    std::string text = "--num-layers 2";
    if (!half.empty()) absl::StrAppend(&text, " --", half);
    if (!engine.empty()) absl::StrAppend(&text, " --use-", engine);
    if (!main.empty()) absl::StrAppend(&text, " --megatron-fsdp-main-grads-dtype ", main);
    if (!comm.empty()) absl::StrAppend(&text, " --megatron-fsdp-grad-comm-dtype ", comm);
    if (!aware_main.empty())
      absl::StrAppend(&text, " --use-precision-aware-optimizer --main-grads-dtype ", aware_main);
    if (reduce_in_bf16) absl::StrAppend(&text, " --grad-reduce-in-bf16");
    if (accumulate) absl::StrAppend(&text, " --accumulate-allreduce-grads-in-fp32");
    return text;
  }

  bool refused() const { return half == "bf16" && accumulate && aware_main == "bf16"; }

  // Returns the "main comm" of this version of Megatron in lower case.
  std::string Of(bool since_019) const {
    const std::string params = half.empty() ? "fp32" : half;
    bool in_fp32 = accumulate;
    if (half == "bf16") {
      if (reduce_in_bf16) {
        in_fp32 = false;
      } else if (aware_main != "bf16") {
        in_fp32 = true;
      }
    }
    if (engine == "torch-fsdp2") return params + " " + params;
    if (engine.empty()) return in_fp32 ? "fp32 fp32" : params + " " + params;
    std::string sum = main == "auto" ? "" : main, wire = comm == "auto" ? "" : comm;
    if (!since_019) {
      if (reduce_in_bf16) wire = "bf16";
      if (in_fp32) sum = wire = "fp32";
    }
    if (sum.empty()) sum = params;
    if (wire.empty()) wire = sum;
    return sum + " " + wire;
  }
};

void Expect(const Flags& flags) {
  const Result result = Convert(flags.Text());
  EXPECT_EQ(result.rules.count("main_grads_agree") == 1, flags.refused()) << flags.Text();
  if (flags.refused()) return;
  const bool contradictory = flags.half == "bf16" && flags.reduce_in_bf16 && flags.accumulate;
  EXPECT_EQ(result.rules.count("grad_reduce_in_bf16_wins") == 1, contradictory) << flags.Text();
  const std::string got = absl::AsciiStrToLower(
      absl::StrCat(Short(result.precision.main_grads()), " ", Short(result.precision.grad_comm())));
  const std::string older = flags.Of(false), newer = flags.Of(true);
  const bool warned = result.rules.count("gradient_types") == 1;
  const auto expect_carried = [&](const std::string& written, const std::string& type) {
    if (written != "" && written != "auto") EXPECT_EQ(type, written) << flags.Text();
  };
  if (result.rules.count("fp16_gradients") == 1) {  // fp16 gradients are not supported and become fp32.
    EXPECT_FALSE(absl::StrContains(got, "fp16")) << flags.Text();
  } else if (!warned) {
    EXPECT_EQ(got, older) << flags.Text();
    EXPECT_EQ(got, newer) << flags.Text();
  } else {
    EXPECT_TRUE(got != older || got != newer) << flags.Text() << " has an unnecessary warning";
  }
  expect_carried(flags.main, got.substr(0, 4));
  expect_carried(flags.comm, got.substr(5));
}

TEST(GradientsOfMegatron, EveryCombinationMatchesMegatronOrIsReported) {
  int combinations = 0;
  for (const char* half : {"", "bf16", "fp16"}) {
    for (const char* engine : {"", "megatron-fsdp", "torch-fsdp2"}) {
      for (const char* main : {"", "auto", "fp32", "bf16"}) {
        for (const char* comm : {"", "auto", "fp32", "bf16"}) {
          for (const char* aware_main : {"", "fp32", "bf16"}) {
            for (const int bits : {0, 1, 2, 3}) {
              Expect({half, engine, main, comm, aware_main, (bits & 1) != 0, (bits & 2) != 0});
              ++combinations;
            }
          }
        }
      }
    }
  }
  EXPECT_EQ(combinations, 3 * 3 * 4 * 4 * 3 * 4);
}

}  // namespace
}  // namespace fsdpd
