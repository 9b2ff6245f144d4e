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
    c_.Fill("parallel");
    ConvertModel(&c_);
    ConvertTraining(&c_);
    ConvertPrecision(&c_);
    ConvertFsdp();
    ConvertRecompute();
    ConvertCheckpoint();
    c_.ReportUnread();
    if (s_.branch() != nullptr) c_.Report("branches_read", "")->place = *s_.branch();
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
      c_.Adjust("torchrun_count", setting, *text, default_count, {"is not a plain number"});
    }
    if (plain && requested.has_value() && *requested != written) {
      c_.Adjust("torchrun_count", setting, *text, *requested, {"migrate's command line has another value"});
    }
    return requested.value_or(plain ? written : default_count);
  }

  // Megatron's other pretraining scripts accept the same options and train other models.
  void CheckScript() {
    const Setting* script = s_.script();
    if (script == nullptr) return;
    const std::string name = script->written.substr(script->written.rfind('/') + 1);
    if (!absl::StartsWith(name, "pretrain_") || name == "pretrain_gpt.py") return;
    c_.Report("script", "", {name})->place = script->place;
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
                off ? there : "no_shard", "optim_grads_params",
                {off ? "Megatron-FSDP is off" : "no strategy is set"});
    }
    return v1::STRATEGY_OPTIM_GRADS_PARAMS;
  }

  // Megatron offloads a fraction of the optimizer state. A spec offloads all of it or nothing, and the device
  // runs the update in both cases.
  void ConvertOptimizerOffload() {
    const double fraction = s_.Real("optimizer_offload_fraction", 1);
    if (fraction < 0 || fraction > 1) {
      c_.Report("optimizer_offload_range", "optimizer_offload_fraction", {fraction});
      return;
    }
    job_.mutable_fsdp()->mutable_offload()->set_optimizer(fraction > 0);
    if (fraction != 1)
      c_.Adjust("optimizer_offload_whole", "optimizer_offload_fraction", fraction,
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
      c_.Adjust("cpu_offload_half", counted ? "cpu_offloading_num_layers" : "cpu_offloading", "on",
                "no layer", {"cpu_offloading_num_layers"});
    } else if (!on && layers != 0) {
      c_.Adjust("cpu_offload_half", "cpu_offloading_num_layers", absl::StrCat(layers, " layers"), "no layer",
                {"cpu_offloading"});
    } else if (on && activations) {
      job_.mutable_fsdp()->mutable_offload()->set_activation_layers(layers);
    }
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
        c_.Adjust("written_twice", setting.name.c_str(), absl::StrJoin(before->values, " "),
                  absl::StrJoin(setting.values, " "));
      }
      before = &setting;
    }
  }

  void ConvertFsdp() {
    v1::Fsdp* fsdp = job_.mutable_fsdp();
    fsdp->set_strategy(ChooseStrategy());
    const bool optim = s_.Lower("outer_dp_sharding_strategy", "no_shard") == "optim";
    c_.SetOuter(s_.Integer("num_distributed_optimizer_instances", 1),
                optim ? v1::STRATEGY_OPTIM : v1::STRATEGY_NO_SHARD);
    if (s_.Flag("optimizer_cpu_offload")) ConvertOptimizerOffload();
    ConvertActivationOffload();
    // Megatron-FSDP prefetches half of this number of elements.
    const std::optional<int64_t> in_flight = s_.Integer("suggested_communication_unit_size");
    c_.SetPrefetch(in_flight.has_value() ? std::optional(*in_flight / 2) : std::nullopt);
  }

  void ConvertRecompute() {
    const bool activations = s_.Flag("recompute_activations");  // The older name of `selective`.
    const std::string granularity = s_.Lower("recompute_granularity", activations ? "selective" : "");
    const bool known = c_.CheckChoice("recompute_known", "recompute_granularity", {"full", "selective"});
    v1::Fsdp* fsdp = job_.mutable_fsdp();
    fsdp->set_recompute(granularity == "full"        ? v1::RECOMPUTE_FULL
                        : granularity == "selective" ? v1::RECOMPUTE_SELECTIVE
                                                     : v1::RECOMPUTE_NONE);
    // recompute_modules applies only to `selective`, recompute_method only to `full`. Otherwise they are not
    // looked up, and ReportUnread() lists them as without effect.
    if (granularity == "selective" || !known) s_.Find("recompute_modules");
    if (granularity != "full" && known) return;
    c_.CheckChoice("recompute_known", "recompute_method", {"uniform", "block"});
    // `uniform` recomputes all layers in groups; `block` recomputes the first recompute_num_layers.
    if (s_.Lower("recompute_method", "uniform") != "block") return;
    const std::optional<int64_t> layers = s_.Integer("recompute_num_layers");
    if (layers.has_value()) fsdp->set_recompute_layers(*layers);
  }

  void ConvertCheckpoint() {
    v1::Checkpoint* checkpoint = job_.mutable_checkpoint();
    if (const auto save = s_.Text("save")) {
      checkpoint->set_dir(*save);
      checkpoint->set_every_steps(s_.Integer("save_interval", 0));
    }
    const auto load = s_.Text("load"), pretrained = s_.Text("pretrained_checkpoint");
    if (load.has_value()) {
      checkpoint->set_load(*load);
      if (!s_.Flag("load_optim", true)) checkpoint->set_load_optimizer(false);
      if (pretrained.has_value() && !job_.train().has_lora())
        c_.Report("pretrained_and_load", "pretrained_checkpoint");
    } else if (pretrained.has_value() && !job_.train().has_lora()) {
      checkpoint->set_load(*pretrained);
      checkpoint->set_load_optimizer(false);
    }
    if (checkpoint->dir().empty() && checkpoint->load().empty()) job_.clear_checkpoint();
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
