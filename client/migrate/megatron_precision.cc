#include "client/migrate/megatron_precision.h"

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <absl/strings/str_replace.h>
#include <absl/strings/strip.h>

#include <optional>
#include <set>

#include "base/limits.h"
#include "client/migrate/megatron_gradients.h"

namespace fsdpd {
namespace {

class PrecisionConverter {
 public:
  explicit PrecisionConverter(SpecConversion* conversion)
      : c_(*conversion),
        s_(c_.settings),
        recipe_(absl::StrReplaceAll(s_.Lower("mixed_precision").value_or(""), {{"-", "_"}})) {}

  void Run() {
    v1::Precision* precision = c_.job.mutable_precision();
    const bool named = !recipe_.empty();  // The recipe then overrides bf16 and fp16 of the model.
    const bool bf16 = named ? absl::StrContains(recipe_, "bf16") : s_.AnyFlag("bf16");
    const bool fp16 = named ? absl::StartsWith(recipe_, "fp16") : s_.AnyFlag("fp16");
    precision->set_compute(bf16 ? v1::DTYPE_BF16 : fp16 ? v1::DTYPE_FP16 : v1::DTYPE_FP32);
    if (fp16) ConvertLossScale(precision->mutable_loss_scale());
    CheckRecipe();
    ConvertFp8(bf16, fp16, precision);
    const v1::DType params = bf16 ? v1::DTYPE_BF16 : fp16 ? v1::DTYPE_FP16 : v1::DTYPE_FP32;
    precision->set_main_params(ReadMainParamsType(params));
    ConvertGradients(params, recipe_, &c_);
    precision->set_moments(ReadMomentType("exp_avg_dtype"));
    if (ReadMomentType("exp_avg_sq_dtype") != precision->moments()) {
      c_.Error("moments_differ", "exp_avg_sq_dtype", "different dtypes of the moments are not supported",
               "write the same for exp_avg_dtype and exp_avg_sq_dtype");
    }
    if (precision->moments() == v1::DTYPE_FP8) {
      c_.Adjust("fp8_moments", "exp_avg_dtype", "FP8 moments are rounded without a scale and without bias",
                "fp8 with a scale", "fp8");
    }
  }

 private:
  // Returns the setting that turns on FP8 matrix products, or null.
  const char* FindFp8Setting() {
    if (!recipe_.empty()) return absl::StrContains(recipe_, "fp8") ? "mixed_precision" : nullptr;
    for (const char* name :
         {"fp8_format", "fp8", "fp8_e4m3", "fp8_hybrid"}) {  // The last two are legacy flags.
      if (s_.AnyFlag(name)) return name;
    }
    return nullptr;
  }

  // A misspelled recipe would silently train in another dtype.
  void CheckRecipe() {
    static const auto* known = new std::set<std::string>{"bf16_mixed",
                                                         "bf16_with_fp8_current_scaling_mixed",
                                                         "bf16_with_fp8_delayed_scaling_mixed",
                                                         "bf16_with_fp8_subchannel_scaling_mixed",
                                                         "bf16_with_mxfp8_mixed",
                                                         "fp16_mixed",
                                                         "fp16_with_fp8_current_scaling_mixed",
                                                         "fp16_with_fp8_delayed_scaling_mixed",
                                                         "fp16_with_fp8_subchannel_scaling_mixed",
                                                         "fp16_with_mxfp8_mixed",
                                                         "nanov2_bf16_with_fp8_current_scaling_mixed",
                                                         "nemotron_h_bf16_with_fp8_current_scaling_mixed"};
    if (recipe_.empty() || absl::StrContains(recipe_, "fp4") || known->count(recipe_) > 0) return;
    c_.Error("recipe_known", "mixed_precision", absl::StrCat("unknown recipe '", recipe_, "'"),
             absl::StrCat("write one of ", absl::StrJoin(*known, ", ")));
  }

  // Reports what Megatron computes in other dtypes with FP8, in addition to the recipe.
  void ReportFp8Differences() {
    for (const char* name : {"fp8_dot_product_attention", "fp8_multi_head_attention"}) {
      if (s_.AnyFlag(name)) c_.Adjust("fp8_attention", name, "attention is computed in bf16", "FP8", "bf16");
    }
    if (recipe_.empty() && !s_.Flag("fp8_wgrad", true))
      c_.Adjust("fp8_matrix_gradients", "fp8_wgrad", "matrices' gradients are products in FP8 too", "bf16",
                "FP8");
  }

  // Number of first and of last layers that a named recipe of Megatron Bridge leaves in bf16.
  int64_t CountBf16LayersOfRecipe() const {
    if (!absl::StrContains(recipe_, "fp8_current_scaling")) return 0;
    return absl::StartsWith(recipe_, "nemotron_h") || absl::StartsWith(recipe_, "nanov2") ? 2 : 1;
  }

  // Number of layers at one end that stay in bf16. The default is 1 in Megatron-LM's arguments and 0 in
  // Megatron Bridge's mixed_precision.
  int64_t CountBf16Layers(const char* setting, const Setting& flag) {
    const bool of_bridge = absl::StartsWith(flag.written, "mixed_precision.");
    const std::optional<int64_t> kept = s_.Integer(setting);
    if (kept.value_or(0) < 0)
      c_.Error("bf16_ends_range", setting, absl::StrCat("the number of layers is ", *kept),
               "write 0 or more");
    return kept.value_or(of_bridge ? 0 : 1);
  }

  void KeepEndsInBf16(v1::Precision* precision) {
    int64_t first = CountBf16LayersOfRecipe(), last = first;
    if (recipe_.empty() && s_.Flag("first_last_layers_bf16")) {
      const Setting& flag = *s_.Find("first_last_layers_bf16");
      first = CountBf16Layers("num_layers_at_start_in_bf16", flag);
      last = CountBf16Layers("num_layers_at_end_in_bf16", flag);
    }
    const int64_t layers = s_.Integer("num_layers").value_or(0);
    if (layers > kMaxLayers) return;  // The spec's rules refuse it.
    for (int64_t i = 0; i < layers; ++i) {
      if (i < first || i >= layers - last)
        precision->mutable_fp8()->add_keep_bf16(absl::StrCat("layer.", i, ".*"));
    }
  }

  void ConvertFp8(bool bf16, bool fp16, v1::Precision* precision) {
    bool known =
        c_.CheckChoice("fp8_known", "fp8_recipe", {"blockwise", "custom", "delayed", "mxfp8", "tensorwise"});
    const char* setting = FindFp8Setting();
    if (setting == nullptr) return;
    for (const char* format : {"fp8_format", "fp8"})
      known = c_.CheckChoice("fp8_known", format, {"e4m3", "hybrid"}) && known;
    if (fp16) {
      return c_.Error("fp8_with_fp16", setting, "FP8 is not supported with fp16",
                      "write bf16 in place of fp16, or leave FP8 out");
    }
    precision->set_compute(v1::DTYPE_FP8);
    if (!known) return;
    // The legacy flags --fp8-e4m3 and --fp8-hybrid have no value.
    const absl::string_view old = absl::StripPrefix(setting, "fp8_");
    std::string recipe = old == "e4m3" || old == "hybrid" ? std::string(old) : s_.Lower(setting).value_or("");
    const auto scaling = s_.Lower("fp8_recipe");
    if (recipe_.empty() && scaling.has_value()) absl::StrAppend(&recipe, ", ", *scaling);
    if (!bf16) absl::StrAppend(&recipe, ", with fp32");
    c_.Adjust("fp8_recipe", setting,
              "linear layers use e4m3 with one scale per row, also for gradients; attention, embedding "
              "and head use higher precision",
              recipe, bf16 ? "e4m3, one scale per row" : "e4m3, one scale per row, with bf16");
    ReportFp8Differences();
    KeepEndsInBf16(precision);
  }

  v1::DType ReadMomentType(const char* setting) {
    const std::string text = s_.Lower(setting).value_or("");
    if (absl::EndsWith(text, "fp8") || absl::EndsWith(text, "uint8"))
      return v1::DTYPE_FP8;  // Megatron stores FP8 moments as uint8.
    return c_.Type(setting).value_or(v1::DTYPE_FP32);
  }

  void ConvertLossScale(v1::Precision::LossScale* scale) {
    const std::optional<double> initial = s_.Real("initial_loss_scale");
    const std::optional<int64_t> window = s_.Integer("loss_scale_window");
    if (initial.has_value()) scale->set_initial(*initial);
    if (window.has_value()) scale->set_growth_interval(*window);
    const int64_t hysteresis = s_.Integer("hysteresis").value_or(2);
    if (hysteresis == 1) return;
    c_.Adjust("loss_scale_hysteresis", "hysteresis", "every overflow halves the loss scale",
              absl::StrCat(hysteresis), "1");
  }

  v1::DType ReadMainParamsType(v1::DType params) {
    const char* megatron_fsdp = "megatron_fsdp_main_params_dtype";  // `auto`: the dtype of the parameters.
    if (s_.Find(megatron_fsdp) != nullptr) return c_.Type(megatron_fsdp).value_or(params);
    const std::optional<v1::DType> precision_aware = c_.Type("main_params_dtype");
    return s_.AnyFlag("use_precision_aware_optimizer") ? precision_aware.value_or(v1::DTYPE_FP32)
                                                       : v1::DTYPE_FP32;
  }

  SpecConversion& c_;
  Settings& s_;
  const std::string recipe_;  // Name of Megatron Bridge's recipe with underscores, or empty.
};

}  // namespace

void ConvertPrecision(SpecConversion* conversion) {
  const size_t reported = conversion->violations.size();
  PrecisionConverter(conversion).Run();
  if (!conversion->settings.AnyFlag("bf16") || !conversion->settings.AnyFlag("fp16")) return;
  // The rule one_half_precision has reported both flags. Drop the errors that depend on which one is
  // intended.
  conversion->violations.erase(conversion->violations.begin() + static_cast<int64_t>(reported),
                               conversion->violations.end());
  conversion->job.clear_precision();
  conversion->job.mutable_precision()->set_compute(v1::DTYPE_BF16);
}

}  // namespace fsdpd
