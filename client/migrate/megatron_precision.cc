#include "client/migrate/megatron_precision.h"

#include <absl/strings/ascii.h>
#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <absl/strings/str_replace.h>
#include <absl/strings/strip.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "base/limits.h"

namespace fsdpd {
namespace {

struct GradientTypes {
  v1::DType main, comm;
  bool operator==(const GradientTypes& other) const { return main == other.main && comm == other.comm; }
};

std::string NameOf(v1::DType type) {
  return absl::AsciiStrToLower(absl::StripPrefix(v1::DType_Name(type), "DTYPE_"));
}

class PrecisionConverter {
 public:
  explicit PrecisionConverter(SpecConversion* conversion)
      : c_(*conversion),
        s_(c_.settings),
        recipe_(absl::StrReplaceAll(s_.Lower("mixed_precision", ""), {{"-", "_"}})) {}

  void Run() {
    v1::Precision* precision = c_.job.mutable_precision();
    const bool named = !recipe_.empty();  // The recipe then overrides bf16 and fp16 of the model.
    const bool bf16 = named ? absl::StrContains(recipe_, "bf16") : s_.AnyFlag("bf16");
    const bool fp16 = named ? absl::StartsWith(recipe_, "fp16") : s_.AnyFlag("fp16");
    c_.SetCompute(bf16, fp16, "hysteresis");
    params_ = precision->compute();
    CheckRecipe();
    ConvertFp8(bf16, fp16, precision);
    precision->set_main_params(ReadMainParamsType());
    ConvertGradients();
    precision->set_moments(ReadMomentType("exp_avg_dtype"));
    if (ReadMomentType("exp_avg_sq_dtype") != precision->moments()) {
      c_.Report("moments_differ", "exp_avg_sq_dtype");
    }
    if (precision->moments() == v1::DTYPE_FP8) {
      c_.Adjust("fp8_moments", "exp_avg_dtype", "fp8 with a scale", "fp8");
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
    std::vector<std::string> known = {"nanov2_bf16_with_fp8_current_scaling_mixed",
                                      "nemotron_h_bf16_with_fp8_current_scaling_mixed"};
    for (const char* with : {"", "_with_fp8_current_scaling", "_with_fp8_delayed_scaling",
                             "_with_fp8_subchannel_scaling", "_with_mxfp8"})
      known.insert(known.end(), {absl::StrCat("bf16", with, "_mixed"), absl::StrCat("fp16", with, "_mixed")});
    std::sort(known.begin(), known.end());
    if (recipe_.empty() || absl::StrContains(recipe_, "fp4")) return;
    if (!std::binary_search(known.begin(), known.end(), recipe_))
      c_.Report("recipe_known", "mixed_precision", {recipe_, absl::StrJoin(known, ", ")});
  }

  // Reports what Megatron computes in other dtypes with FP8, in addition to the recipe.
  void ReportFp8Differences() {
    for (const char* name : {"fp8_dot_product_attention", "fp8_multi_head_attention"}) {
      if (s_.AnyFlag(name)) c_.Adjust("fp8_attention", name, "FP8", "bf16");
    }
    if (recipe_.empty() && !s_.Flag("fp8_wgrad", true))
      c_.Adjust("fp8_matrix_gradients", "fp8_wgrad", "bf16", "FP8");
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
    if (kept.value_or(0) < 0) c_.Report("bf16_ends_range", setting, {*kept});
    return kept.value_or(of_bridge ? 0 : 1);
  }

  void KeepEndsInBf16(v1::Precision* precision) {
    int64_t first = CountBf16LayersOfRecipe(), last = first;
    if (recipe_.empty() && s_.Flag("first_last_layers_bf16")) {
      const Setting& flag = *s_.Find("first_last_layers_bf16");
      first = CountBf16Layers("num_layers_at_start_in_bf16", flag);
      last = CountBf16Layers("num_layers_at_end_in_bf16", flag);
    }
    const int64_t layers = s_.Integer("num_layers", 0);
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
      c_.Report("fp8_with_fp16", setting);
      return;
    }
    precision->set_compute(v1::DTYPE_FP8);
    if (!known) return;
    // The legacy flags --fp8-e4m3 and --fp8-hybrid have no value.
    const absl::string_view old = absl::StripPrefix(setting, "fp8_");
    std::string recipe = old == "e4m3" || old == "hybrid" ? std::string(old) : s_.Lower(setting, "");
    const auto scaling = s_.Lower("fp8_recipe");
    if (recipe_.empty() && scaling.has_value()) absl::StrAppend(&recipe, ", ", *scaling);
    if (!bf16) absl::StrAppend(&recipe, ", with fp32");
    c_.Adjust("fp8_recipe", setting, recipe,
              bf16 ? "e4m3, one scale per row" : "e4m3, one scale per row, with bf16");
    ReportFp8Differences();
    KeepEndsInBf16(precision);
  }

  v1::DType ReadMomentType(const char* setting) {
    const std::string text = s_.Lower(setting, "");
    if (absl::EndsWith(text, "fp8") || absl::EndsWith(text, "uint8"))
      return v1::DTYPE_FP8;  // Megatron stores FP8 moments as uint8.
    return c_.Type(setting).value_or(v1::DTYPE_FP32);
  }

  v1::DType ReadMainParamsType() {
    const char* megatron_fsdp = "megatron_fsdp_main_params_dtype";  // `auto`: the dtype of the parameters.
    if (s_.Find(megatron_fsdp) != nullptr) return c_.Type(megatron_fsdp).value_or(params_);
    const std::optional<v1::DType> precision_aware = c_.Type("main_params_dtype");
    return s_.AnyFlag("use_precision_aware_optimizer") ? precision_aware.value_or(v1::DTYPE_FP32)
                                                       : v1::DTYPE_FP32;
  }

  // Writes the dtypes that gradients are accumulated in (precision.main_grads) and reduced in
  // (precision.grad_comm).
  //
  // Megatron Core 0.18 and earlier derive both from the mixed-precision flags: with --bf16 they are fp32
  // unless --grad-reduce-in-bf16 is given. From 0.19 on, Megatron-FSDP reads only
  // megatron_fsdp_main_grads_dtype and megatron_fsdp_grad_comm_dtype, whose default `auto` is the parameters'
  // dtype. A configuration does not contain its version. So an explicit dtype is carried over, `auto` follows
  // the mixed-precision flags, and the warning `gradient_types` is printed where a version differs from that.
  void ConvertGradients() {
    const bool reduce_in_bf16 = s_.AnyFlag("grad_reduce_in_bf16");
    // Megatron calls fully_shard without a MixedPrecisionPolicy: gradients have the parameters' dtype.
    const bool in_fp32 = InFp32(reduce_in_bf16) && !s_.Flag("use_torch_fsdp2");
    const std::optional<v1::DType> main = c_.Type("megatron_fsdp_main_grads_dtype");
    const std::optional<v1::DType> comm = c_.Type("megatron_fsdp_grad_comm_dtype");
    const v1::DType default_type = in_fp32 ? v1::DTYPE_FP32 : params_;

    GradientTypes requested;
    requested.main = main.value_or(default_type);
    const bool bf16_comm = reduce_in_bf16 && params_ == v1::DTYPE_BF16;
    requested.comm = comm.value_or(bf16_comm ? v1::DTYPE_BF16 : requested.main);

    // An explicit fp16 is left for the spec's rules to refuse.
    GradientTypes chosen = requested;
    const bool main_by_default = !main.has_value() && requested.main == v1::DTYPE_FP16;
    const bool comm_by_default = !comm.has_value() && requested.comm == v1::DTYPE_FP16;
    if (main_by_default) chosen.main = v1::DTYPE_FP32;
    if (comm_by_default) chosen.comm = v1::DTYPE_FP32;
    if (main_by_default) {
      c_.Adjust("fp16_gradients", recipe_.empty() ? "fp16" : "mixed_precision", "fp16", "fp32",
                {comm_by_default ? "and reduced " : ""});
    }
    if (chosen.main != v1::DTYPE_FP16 && chosen.comm != v1::DTYPE_FP16)
      WarnIfVersionsDiffer(requested, chosen, VersionsOfMegatron(in_fp32, reduce_in_bf16, main, comm));
    c_.job.mutable_precision()->set_main_grads(chosen.main);
    c_.job.mutable_precision()->set_grad_comm(chosen.comm);
  }

  // DistributedDataParallelConfig.grad_reduce_in_fp32, as Megatron-LM's arguments or Bridge derive it.
  bool InFp32(bool reduce_in_bf16) {
    const v1::DType main_grads = AwareMainGrads();
    const bool accumulate = s_.Flag("accumulate_allreduce_grads_in_fp32");
    bool arguments = s_.Find("accumulate_allreduce_grads_in_fp32") != nullptr;
    bool mixed_precision = false;
    for (const char* name : {"bf16", "fp16"}) {
      for (const Setting* setting : s_.FindAll(name)) {
        arguments |= absl::StartsWith(setting->written, "--");
        mixed_precision |= absl::StartsWith(setting->written, "mixed_precision.");
      }
    }
    const bool bridge = s_.Flag("grad_reduce_in_fp32", mixed_precision);
    if (!recipe_.empty()) return !absl::StartsWith(recipe_, "fp16");
    if (!arguments) return bridge;
    if (params_ != v1::DTYPE_BF16) return accumulate;
    if (accumulate && main_grads != v1::DTYPE_FP32) c_.Report("main_grads_agree", "main_grads_dtype");
    if (accumulate && reduce_in_bf16)
      c_.Adjust("grad_reduce_in_bf16_wins", "accumulate_allreduce_grads_in_fp32", "true", "false");
    return !reduce_in_bf16 && (accumulate || main_grads == v1::DTYPE_FP32);
  }

  v1::DType AwareMainGrads() {
    const v1::DType type = c_.Type("main_grads_dtype").value_or(v1::DTYPE_FP32);
    if (type == v1::DTYPE_FP16) c_.Report("type_known", "main_grads_dtype", {"fp16", ""});
    return type;
  }

  // Gradient dtypes in each version of Megatron that may have written this configuration.
  using Versions = std::vector<std::pair<std::string, GradientTypes>>;
  Versions VersionsOfMegatron(bool in_fp32, bool reduce_in_bf16, std::optional<v1::DType> main,
                              std::optional<v1::DType> comm) {
    const GradientTypes fp32 = {v1::DTYPE_FP32, v1::DTYPE_FP32}, own = {params_, params_};
    if (s_.Flag("use_torch_fsdp2")) return {{"PyTorch's FSDP2 in Megatron", own}};
    if (!s_.AnyFlag("use_megatron_fsdp")) {
      if (s_.incomplete()) return {};
      return {{"Megatron without Megatron-FSDP", in_fp32 ? fp32 : own}};
    }
    GradientTypes older = fp32, newer = own;
    if (!in_fp32) {
      older.main = main.value_or(params_);
      older.comm = reduce_in_bf16 ? v1::DTYPE_BF16 : comm.value_or(older.main);
    }
    newer.main = main.value_or(params_);
    newer.comm = comm.value_or(newer.main);
    return {{"Megatron Core 0.18 and earlier", older}, {"0.19 and later", newer}};
  }

  // Compares with `requested`, not `chosen`: the rule `fp16_gradients` reports how these two differ.
  void WarnIfVersionsDiffer(const GradientTypes& requested, const GradientTypes& chosen,
                            const Versions& versions) {
    std::vector<std::string> texts;
    bool differs = false;
    for (const auto& [name, types] : versions) {
      differs |= !(types == requested);
      texts.push_back(
          absl::StrCat(name, ": accumulated in ", NameOf(types.main), ", reduced in ", NameOf(types.comm)));
    }
    if (!differs) return;
    std::vector<const char*> names = {"mixed_precision"};
    if (recipe_.empty()) names = {"fp16", "bf16", "grad_reduce_in_fp32", "grad_reduce_in_bf16"};
    names.insert(names.end(), {"megatron_fsdp_grad_comm_dtype", "megatron_fsdp_main_grads_dtype"});
    const char* setting = names.front();
    for (const char* name : names) {
      if (s_.Find(name) != nullptr) setting = name;
    }
    c_.Report("gradient_types", setting,
              {NameOf(chosen.main), NameOf(chosen.comm), absl::StrJoin(texts, "; ")});
  }

  SpecConversion& c_;
  Settings& s_;
  v1::DType params_ = v1::DTYPE_FP32;  // Dtype of parameters in forward and backward (bf16 for FP8).
  const std::string recipe_;           // Name of Megatron Bridge's recipe with underscores, or empty.
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
