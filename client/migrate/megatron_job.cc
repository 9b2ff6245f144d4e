#include "client/migrate/megatron_job.h"

#include <absl/strings/ascii.h>
#include <absl/strings/match.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include <map>
#include <set>
#include <string>
#include <utility>

#include "client/migrate/conversion.h"
#include "client/migrate/megatron_model.h"
#include "client/migrate/megatron_options.h"
#include "client/migrate/megatron_precision.h"
#include "client/migrate/megatron_training.h"

namespace fsdpd {
namespace {

class Converter {
 public:
  Converter(Settings* settings, const std::string& file, v1::JobSpec* job)
      : c_(settings, file, job), s_(*settings), job_(*job) {}

  LocatedViolations Run(const Cluster& cluster) {
    job_.set_name("migrated");
    job_.mutable_resources()->set_nodes(ChooseCount(cluster.nodes, "nnodes", 1));
    job_.mutable_resources()->set_ranks_per_node(ChooseCount(cluster.ranks_per_node, "nproc_per_node", 8));
    job_.mutable_resources()->set_device(v1::DEVICE_CUDA);
    CheckScript();
    ConvertModel(&c_);
    ConvertTraining(&c_);
    ConvertPrecision(&c_);
    ConvertFsdp();
    ConvertRecompute();
    ConvertParallel();
    ConvertCheckpoint();
    ReportUnused();
    WarnAboutBranches();
    ReportRepeatedFlags();  // Last: Adjust() looks the setting up, which marks it as used.
    c_.violations.insert(c_.violations.end(), s_.value_violations().begin(), s_.value_violations().end());
    return std::move(c_.violations);
  }

 private:
  // Number of nodes or ranks: from migrate's command line, or else from torchrun's, whose value may also be a
  // range ("1:4") or a word ("auto").
  int64_t ChooseCount(std::optional<int64_t> requested, const char* setting, int64_t default_count) {
    const std::optional<std::string> text = s_.Text(setting);
    int64_t written = 0;
    const bool plain = text.has_value() && absl::SimpleAtoi(*text, &written) && written > 0;
    if (text.has_value() && !plain && !requested.has_value()) {
      c_.Adjust("torchrun_count", setting, "is not a plain number", *text, absl::StrCat(default_count));
    }
    if (plain && requested.has_value() && *requested != written) {
      c_.Adjust("torchrun_count", setting, "migrate's command line has another value", *text,
                absl::StrCat(*requested));
    }
    return requested.value_or(plain ? written : default_count);
  }

  // Megatron's other pretraining scripts accept the same options and train other models.
  void CheckScript() {
    const Setting* script = s_.script();
    if (script == nullptr) return;
    const std::string name = script->written.substr(script->written.rfind('/') + 1);
    if (!absl::StartsWith(name, "pretrain_") || name == "pretrain_gpt.py") return;
    c_.Error("script", "", absl::StrCat(name, " trains a different kind of model than pretrain_gpt.py"),
             "only decoders of the Llama and GPT-2 families are supported");
    c_.violations.back().place = script->place;
  }

  // Sharding does not change the result of training. A run without Megatron-FSDP, or without an explicit
  // strategy, gets full sharding, which needs the least memory.
  v1::Strategy ChooseStrategy() {
    const bool fsdp = s_.Flag("use_megatron_fsdp", !s_.Flag("use_torch_fsdp2"));
    const bool off = s_.Find("use_megatron_fsdp") != nullptr && !fsdp;
    const std::string there = s_.Flag("use_distributed_optimizer") ? "optim" : "no_shard";
    if (const auto name = s_.Lower("data_parallel_sharding_strategy"); name.has_value() && !off) {
      v1::Strategy strategy = v1::STRATEGY_OPTIM_GRADS_PARAMS;
      v1::Strategy_Parse(absl::StrCat("STRATEGY_", absl::AsciiStrToUpper(*name)), &strategy);
      return strategy;
    }
    if (!s_.Flag("use_torch_fsdp2")) {
      c_.Adjust("strategy_chosen", off ? "use_megatron_fsdp" : "data_parallel_sharding_strategy",
                off ? "Megatron-FSDP is off; full sharding gives the same result with less memory"
                    : "no strategy is set; full sharding gives the same result with less memory",
                off ? there : "no_shard", "optim_grads_params");
    }
    return v1::STRATEGY_OPTIM_GRADS_PARAMS;
  }

  // Megatron offloads a fraction of the optimizer state. A spec offloads all of it or nothing, and the device
  // runs the update in both cases.
  void ConvertOptimizerOffload() {
    const double fraction = s_.Real("optimizer_offload_fraction").value_or(1);
    if (fraction < 0 || fraction > 1)
      return c_.Error("optimizer_offload_range", "optimizer_offload_fraction",
                      absl::StrCat(fraction, " is not between 0 and 1"), "write 1 for all, or leave it out");
    job_.mutable_fsdp()->mutable_offload()->set_optimizer(fraction > 0);
    if (fraction == 1) return;
    c_.Adjust("optimizer_offload_whole", "optimizer_offload_fraction",
              "the optimizer state is offloaded completely or not at all", absl::StrCat(fraction),
              fraction > 0 ? "1" : "none");
  }

  // Megatron needs both settings. With only one of them it offloads nothing and prints no warning.
  void ConvertActivationOffload() {
    const bool on = s_.Flag("cpu_offloading");
    const bool activations = s_.Flag("cpu_offloading_activations", true);
    const bool counted = s_.Find("cpu_offloading_num_layers") != nullptr;
    const std::optional<int64_t> read = s_.Integer("cpu_offloading_num_layers");
    if (counted && !read.has_value()) return;  // Integer() has reported the invalid number.
    const int64_t layers = read.value_or(0);
    if (on && layers == 0 && activations) {
      c_.Adjust("cpu_offload_half", counted ? "cpu_offloading_num_layers" : "cpu_offloading",
                "no layer is offloaded without cpu_offloading_num_layers", "on", "no layer");
    } else if (!on && layers != 0) {
      c_.Adjust("cpu_offload_half", "cpu_offloading_num_layers",
                "no layer is offloaded without cpu_offloading", absl::StrCat(layers, " layers"), "no layer");
    } else if (on && activations) {
      job_.mutable_fsdp()->mutable_offload()->set_activation_layers(layers);
    }
  }

  void WarnAboutBranches() {
    if (s_.branch() == nullptr) return;
    c_.AddViolation("branches_read", ViolationLevel::kWarn, "",
                    "settings of all branches are read, and the last value counts",
                    "paste only the arguments, as printed by `echo`");
    c_.violations.back().place = *s_.branch();
  }

  // The last occurrence of a flag wins, as in argparse. Different values may be a mistake, so they are
  // reported.
  void ReportRepeatedFlags() {
    // By flag and setting, because one flag may set two settings (--use-megatron-fsdp-v2).
    std::map<std::pair<std::string, std::string>, const Setting*> flags;
    for (const Setting& setting : s_.all()) {
      if (!absl::StartsWith(setting.written, "--") || setting.open) continue;
      if (KindOf(setting) == OptionKind::kOfLauncher) continue;  // Launchers accept some flags repeatedly.
      const Setting*& before = flags[{setting.written, setting.name}];
      if (before != nullptr && before->values != setting.values) {
        c_.Adjust("written_twice", setting.name.c_str(), "the last value counts, as in Megatron-LM",
                  absl::StrJoin(before->values, " "), absl::StrJoin(setting.values, " "));
      }
      before = &setting;
    }
  }

  void ConvertFsdp() {
    v1::Fsdp* fsdp = job_.mutable_fsdp();
    fsdp->set_strategy(ChooseStrategy());
    const int64_t instances = s_.Integer("num_distributed_optimizer_instances").value_or(1);
    const bool optim = s_.Lower("outer_dp_sharding_strategy").value_or("no_shard") == "optim";
    if (instances > 1) {
      fsdp->mutable_outer()->set_size(instances);
      fsdp->mutable_outer()->set_strategy(optim ? v1::STRATEGY_OPTIM : v1::STRATEGY_NO_SHARD);
    }
    if (s_.Flag("optimizer_cpu_offload")) ConvertOptimizerOffload();
    ConvertActivationOffload();
    // Megatron-FSDP prefetches half of this number of elements.
    const std::optional<int64_t> in_flight = s_.Integer("suggested_communication_unit_size");
    if (in_flight.has_value() && fsdp->strategy() == v1::STRATEGY_OPTIM_GRADS_PARAMS) {
      const int64_t element_bytes = job_.precision().compute() == v1::DTYPE_FP32 ? 4 : 2;
      fsdp->set_prefetch_bytes(*in_flight / 2 * element_bytes);
    }
  }

  void ConvertRecompute() {
    const bool activations = s_.Flag("recompute_activations");  // The older name of `selective`.
    const std::string granularity =
        s_.Lower("recompute_granularity").value_or(activations ? "selective" : "");
    const bool known = c_.CheckChoice("recompute_known", "recompute_granularity", {"full", "selective"});
    v1::Fsdp* fsdp = job_.mutable_fsdp();
    fsdp->set_recompute(granularity == "full"        ? v1::RECOMPUTE_FULL
                        : granularity == "selective" ? v1::RECOMPUTE_SELECTIVE
                                                     : v1::RECOMPUTE_NONE);
    // recompute_modules applies only to `selective`, recompute_method only to `full`. Otherwise they are not
    // looked up, and ReportUnused() lists them as without effect.
    if (granularity == "selective" || !known) s_.Find("recompute_modules");
    if (granularity != "full" && known) return;
    c_.CheckChoice("recompute_known", "recompute_method", {"uniform", "block"});
    // `uniform` recomputes all layers in groups; `block` recomputes the first recompute_num_layers.
    if (s_.Lower("recompute_method").value_or("uniform") != "block") return;
    const std::optional<int64_t> layers = s_.Integer("recompute_num_layers");
    if (layers.has_value()) fsdp->set_recompute_layers(*layers);
  }

  void ConvertParallel() {
    v1::Parallel* parallel = job_.mutable_parallel();
    parallel->set_tensor(s_.Integer("tensor_model_parallel_size").value_or(1));
    parallel->set_context(s_.Integer("context_parallel_size").value_or(1));
    parallel->set_expert(s_.Integer("expert_model_parallel_size").value_or(1));
    parallel->set_pipeline(s_.Integer("pipeline_model_parallel_size").value_or(1));
  }

  void ConvertCheckpoint() {
    v1::Checkpoint* checkpoint = job_.mutable_checkpoint();
    if (const auto save = s_.Text("save")) {
      checkpoint->set_dir(*save);
      checkpoint->set_every_steps(s_.Integer("save_interval").value_or(0));
    }
    const auto load = s_.Text("load"), pretrained = s_.Text("pretrained_checkpoint");
    if (load.has_value()) {
      checkpoint->set_load(*load);
      if (!s_.Flag("load_optim", true)) checkpoint->set_load_optimizer(false);
      if (pretrained.has_value())
        c_.AddViolation(
            "pretrained_and_load", ViolationLevel::kWarn, "pretrained_checkpoint",
            "load is used; Megatron starts from pretrained_checkpoint while load has no checkpoint",
            "write checkpoint.load: the one to start from");
    } else if (pretrained.has_value()) {
      checkpoint->set_load(*pretrained);
      checkpoint->set_load_optimizer(false);
    }
    if (checkpoint->dir().empty() && checkpoint->load().empty()) job_.clear_checkpoint();
  }

  void ReportUnused() {
    std::set<std::string> without_effect, of_launcher, unknown;
    for (const Setting* setting : s_.unused()) {
      switch (KindOf(*setting)) {
        case OptionKind::kWithoutEffect:
          without_effect.insert(setting->written);
          break;
        case OptionKind::kOfLauncher:
          of_launcher.insert(setting->written);
          break;
        case OptionKind::kUnknown: {
          const std::string suggestion = SuggestOption(*setting, s_.requested());
          unknown.insert(suggestion.empty()
                             ? setting->written
                             : absl::StrCat(setting->written, " (did you mean ", suggestion, "?)"));
          break;
        }
        case OptionKind::kNotSupported:
          ReportUnsupported(*setting);
          break;
      }
    }
    ReportNames("without_effect", "without effect on the result, and dropped: ", without_effect);
    std::set<std::string> environment;
    for (const auto& [name, variable] : s_.variables()) {
      // The rule `connections` has already reported it.
      if (name == "CUDA_DEVICE_MAX_CONNECTIONS" && variable.values.front() == "1") continue;
      for (const char* beginning : {"NCCL_", "CUDA_", "TORCH_", "PYTORCH_", "NVTE_"}) {
        if (absl::StartsWith(name, beginning)) environment.insert(name);
      }
    }
    ReportNames("environment", "environment variables, to be set for the agents instead: ", environment);
    ReportNames("of_launcher", "of the launcher, which the agents replace: ", of_launcher);
    ReportNames("not_known", "unknown, and dropped; check whether they change the result: ", unknown);
  }

  void ReportUnsupported(const Setting& setting) {
    const absl::string_view meaning = DescribeUnsupported(setting);
    c_.Error("not_supported", setting.name.c_str(),
             meaning.empty() ? "changes the model, the data or the numbers, and is not supported"
                             : absl::StrCat(meaning, meaning.back() == ')' ? ": " : " is ", "not supported"),
             "leave it out if it is not needed");
  }

  void ReportNames(const char* rule, const char* what, const std::set<std::string>& names) {
    if (names.empty()) return;
    c_.AddViolation(rule, ViolationLevel::kWarn, "",
                    absl::StrCat(names.size(), names.size() == 1 ? " setting is " : " settings are ", what,
                                 absl::StrJoin(names, ", ")),
                    "");
  }

  SpecConversion c_;
  Settings& s_;
  v1::JobSpec& job_;
};

}  // namespace

LocatedViolations ConvertMegatronJob(Settings* settings, const Cluster& cluster, const std::string& file,
                                     v1::JobSpec* job) {
  return Converter(settings, file, job).Run(cluster);
}

}  // namespace fsdpd
