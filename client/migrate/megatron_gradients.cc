#include "client/migrate/megatron_gradients.h"

#include <absl/strings/ascii.h>
#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <absl/strings/strip.h>

#include <optional>
#include <vector>

namespace fsdpd {
namespace {

struct GradientTypes {
  v1::DType main, comm;
  bool operator==(const GradientTypes& other) const { return main == other.main && comm == other.comm; }
};

std::string NameOf(v1::DType type) {
  return absl::AsciiStrToLower(absl::StripPrefix(v1::DType_Name(type), "DTYPE_"));
}

class GradientConverter {
 public:
  GradientConverter(v1::DType params, const std::string& recipe, SpecConversion* conversion)
      : c_(*conversion), s_(c_.settings), params_(params), recipe_(recipe) {}

  void Run() {
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
      c_.Adjust("fp16_gradients", recipe_.empty() ? "fp16" : "mixed_precision",
                absl::StrCat("gradients are accumulated ", comm_by_default ? "and reduced " : "", "in fp32"),
                "fp16", "fp32");
    }
    if (chosen.main != v1::DTYPE_FP16 && chosen.comm != v1::DTYPE_FP16)
      WarnIfVersionsDiffer(requested, chosen, VersionsOfMegatron(in_fp32, reduce_in_bf16, main, comm));
    c_.job.mutable_precision()->set_main_grads(chosen.main);
    c_.job.mutable_precision()->set_grad_comm(chosen.comm);
  }

 private:
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
    if (accumulate && main_grads != v1::DTYPE_FP32) {
      c_.Error("main_grads_agree", "main_grads_dtype",
               "accumulate_allreduce_grads_in_fp32 requires main_grads_dtype fp32",
               "leave one of the two out");
    }
    if (accumulate && reduce_in_bf16) {
      c_.Adjust("grad_reduce_in_bf16_wins", "accumulate_allreduce_grads_in_fp32",
                "grad_reduce_in_bf16 turns it off, as in Megatron-LM", "true", "false");
    }
    return !reduce_in_bf16 && (accumulate || main_grads == v1::DTYPE_FP32);
  }

  v1::DType AwareMainGrads() {
    const v1::DType type = c_.Type("main_grads_dtype").value_or(v1::DTYPE_FP32);
    if (type == v1::DTYPE_FP16)
      c_.Error("type_known", "main_grads_dtype", "'fp16' is not supported", "write fp32 or bf16");
    return type;
  }

  struct MegatronVersion {
    std::string name;
    GradientTypes types;
  };

  // Gradient dtypes in each version of Megatron that may have written this configuration.
  std::vector<MegatronVersion> VersionsOfMegatron(bool in_fp32, bool reduce_in_bf16,
                                                  std::optional<v1::DType> main,
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
                            const std::vector<MegatronVersion>& versions) {
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
    c_.AddViolation("gradient_types", ViolationLevel::kWarn, setting,
                    absl::StrCat("gradients will be accumulated in ", NameOf(chosen.main), " and reduced in ",
                                 NameOf(chosen.comm), "; ", absl::StrJoin(texts, "; ")),
                    "set precision.main_grads and precision.grad_comm if others are intended");
  }

  SpecConversion& c_;
  Settings& s_;
  const v1::DType params_;
  const std::string& recipe_;
};

}  // namespace

void ConvertGradients(v1::DType params, const std::string& recipe, SpecConversion* conversion) {
  GradientConverter(params, recipe, conversion).Run();
}

}  // namespace fsdpd
