#include "client/migrate/job_of_megatron.h"

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
#include "client/migrate/megatron_options.h"
#include "client/migrate/model_of_megatron.h"
#include "client/migrate/precision_of_megatron.h"
#include "client/migrate/training_of_megatron.h"

namespace fsdpd {
namespace {

class Converter {
 public:
  Converter(Settings* settings, const std::string& file, v1::JobSpec* job)
      : c_(settings, file, job), s_(*settings), job_(*job) {}

  SpecFaults Run(const Cluster& cluster) {
    job_.set_name("migrated");
    job_.mutable_resources()->set_nodes(Count(cluster.nodes, "nnodes", 1));
    job_.mutable_resources()->set_ranks_per_node(Count(cluster.ranks_per_node, "nproc_per_node", 8));
    job_.mutable_resources()->set_device(v1::DEVICE_CUDA);
    Script();
    ConvertModel(&c_);
    ConvertTraining(&c_);
    ConvertPrecision(&c_);
    Fsdp();
    Recompute();
    Parallel();
    Checkpoint();
    TellUnused();
    TellBranches();
    TellWrittenTwice();  // To tell of one is to use it.
    c_.faults.insert(c_.faults.end(), s_.value_faults().begin(), s_.value_faults().end());
    return std::move(c_.faults);
  }

 private:
  // Nodes or ranks: the command line's word, or torchrun's, which may be a range or "auto".
  int64_t Count(std::optional<int64_t> asked, const char* setting, int64_t otherwise) {
    const std::optional<std::string> text = s_.Text(setting);
    int64_t said = 0;
    const bool plain = text.has_value() && absl::SimpleAtoi(*text, &said) && said > 0;
    if (text.has_value() && !plain && !asked.has_value()) {
      c_.Adjust("torchrun_count", setting, "only a number says how many ranks there are", *text,
                absl::StrCat(otherwise));
    }
    if (plain && asked.has_value() && *asked != said) {
      c_.Adjust("torchrun_count", setting, "the command line of migrate says otherwise", *text,
                absl::StrCat(*asked));
    }
    return asked.value_or(plain ? said : otherwise);
  }

  // Megatron's other scripts share its options and train other models.
  void Script() {
    const Setting* script = s_.script();
    if (script == nullptr) return;
    const std::string name = script->written.substr(script->written.rfind('/') + 1);
    if (!absl::StartsWith(name, "pretrain_") || name == "pretrain_gpt.py") return;
    c_.Error("script", "", absl::StrCat(name, " trains another kind of model than pretrain_gpt.py"),
             "only decoders of the Llama and GPT-2 families are supported");
    c_.faults.back().place = script->place;
  }

  // Which ranks hold what is not in the numbers that are trained, so a run without Megatron-FSDP, or one that
  // does not say its strategy, becomes what needs the least memory.
  v1::Strategy Strategy() {
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
                off ? "Megatron-FSDP is off; sharded, the same is trained in less memory"
                    : "no strategy is set; sharded, the same is trained in less memory",
                off ? there : "no_shard", "optim_grads_params");
    }
    return v1::STRATEGY_OPTIM_GRADS_PARAMS;
  }

  // Of a part there, all of it lies in host memory here, and it is updated on the device.
  void OffloadState() {
    const double fraction = s_.Real("optimizer_offload_fraction").value_or(1);
    if (fraction < 0 || fraction > 1)
      return c_.Error("optimizer_offload_range", "optimizer_offload_fraction",
                      absl::StrCat(fraction, " is not between 0 and 1"), "write 1 for all, or leave it out");
    job_.mutable_fsdp()->mutable_offload()->set_optimizer(fraction > 0);
    if (fraction == 1) return;
    c_.Adjust("optimizer_offload_whole", "optimizer_offload_fraction",
              "either all of the optimizer's state lies in host memory or none", absl::StrCat(fraction),
              fraction > 0 ? "1" : "none");
  }

  // Megatron offloads nothing by one of the two settings alone, and says nothing of it.
  void OffloadActivations() {
    const bool on = s_.Flag("cpu_offloading");
    const bool activations = s_.Flag("cpu_offloading_activations", true);
    const bool counted = s_.Find("cpu_offloading_num_layers") != nullptr;
    const std::optional<int64_t> read = s_.Integer("cpu_offloading_num_layers");
    if (counted && !read.has_value()) return;  // It is no number, which is told.
    const int64_t layers = read.value_or(0);
    if (on && layers == 0 && activations) {
      c_.Adjust("cpu_offload_half", counted ? "cpu_offloading_num_layers" : "cpu_offloading",
                "cpu_offloading_num_layers says of how many layers", "on", "no layer");
    } else if (!on && layers != 0) {
      c_.Adjust("cpu_offload_half", "cpu_offloading_num_layers", "cpu_offloading is what turns it on",
                absl::StrCat(layers, " layers"), "no layer");
    } else if (on && activations) {
      job_.mutable_fsdp()->mutable_offload()->set_activation_layers(layers);
    }
  }

  void TellBranches() {
    if (s_.branch() == nullptr) return;
    c_.Fault(
        "branches_read", FaultLevel::kWarn, "",
        "which branch the shell takes is not decided here: what every branch sets is read, and of two the "
        "last one counts",
        "paste the arguments alone, as `echo` prints them");
    c_.faults.back().place = *s_.branch();
  }

  // On a command line the last one counts; that there are two may be a slip.
  void TellWrittenTwice() {
    std::map<std::pair<std::string, std::string>, const Setting*> flags;  // One flag may be two settings.
    for (const Setting& setting : s_.all()) {
      if (!absl::StartsWith(setting.written, "--") || setting.open) continue;
      if (KindOf(setting) == OptionKind::kOfLauncher) continue;  // There may be several.
      const Setting*& before = flags[{setting.written, setting.name}];
      if (before != nullptr && before->values != setting.values) {
        c_.Adjust("written_twice", setting.name.c_str(), "of two the last one counts, as on a command line",
                  absl::StrJoin(before->values, " "), absl::StrJoin(setting.values, " "));
      }
      before = &setting;
    }
  }

  void Fsdp() {
    v1::Fsdp* fsdp = job_.mutable_fsdp();
    fsdp->set_strategy(Strategy());
    const int64_t instances = s_.Integer("num_distributed_optimizer_instances").value_or(1);
    const bool optim = s_.Lower("outer_dp_sharding_strategy").value_or("no_shard") == "optim";
    if (instances > 1) {
      fsdp->mutable_outer()->set_size(instances);
      fsdp->mutable_outer()->set_strategy(optim ? v1::STRATEGY_OPTIM : v1::STRATEGY_NO_SHARD);
    }
    if (s_.Flag("optimizer_cpu_offload")) OffloadState();
    OffloadActivations();
    // Half of it, in elements, is what Megatron-FSDP prefetches.
    const std::optional<int64_t> in_flight = s_.Integer("suggested_communication_unit_size");
    if (in_flight.has_value() && fsdp->strategy() == v1::STRATEGY_OPTIM_GRADS_PARAMS) {
      const int64_t element_bytes = job_.precision().compute() == v1::DTYPE_FP32 ? 4 : 2;
      fsdp->set_prefetch_bytes(*in_flight / 2 * element_bytes);
    }
  }

  void Recompute() {
    const bool activations = s_.Flag("recompute_activations");  // The older word for `selective`.
    const std::string granularity =
        s_.Lower("recompute_granularity").value_or(activations ? "selective" : "");
    const bool known = c_.KnowsWord("recompute_known", "recompute_granularity", {"full", "selective"});
    v1::Fsdp* fsdp = job_.mutable_fsdp();
    fsdp->set_recompute(granularity == "full"        ? v1::RECOMPUTE_FULL
                        : granularity == "selective" ? v1::RECOMPUTE_SELECTIVE
                                                     : v1::RECOMPUTE_NONE);
    // Each of the others is of one of the two: without that nobody reads it, and it is told to be without
    // effect.
    if (granularity == "selective" || !known) s_.Find("recompute_modules");
    if (granularity != "full" && known) return;
    c_.KnowsWord("recompute_known", "recompute_method", {"uniform", "block"});
    // "uniform" recomputes all layers, in groups; "block" the first so many.
    if (s_.Lower("recompute_method").value_or("uniform") != "block") return;
    const std::optional<int64_t> layers = s_.Integer("recompute_num_layers");
    if (layers.has_value()) fsdp->set_recompute_layers(*layers);
  }

  void Parallel() {
    v1::Parallel* parallel = job_.mutable_parallel();
    parallel->set_tensor(s_.Integer("tensor_model_parallel_size").value_or(1));
    parallel->set_context(s_.Integer("context_parallel_size").value_or(1));
    parallel->set_expert(s_.Integer("expert_model_parallel_size").value_or(1));
    parallel->set_pipeline(s_.Integer("pipeline_model_parallel_size").value_or(1));
  }

  void Checkpoint() {
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
        c_.Fault("pretrained_and_load", FaultLevel::kWarn, "pretrained_checkpoint",
                 "load is used; Megatron starts from pretrained_checkpoint while load has no checkpoint",
                 "write checkpoint.load: the one to start from");
    } else if (pretrained.has_value()) {
      checkpoint->set_load(*pretrained);
      checkpoint->set_load_optimizer(false);
    }
    if (checkpoint->dir().empty() && checkpoint->load().empty()) job_.clear_checkpoint();
  }

  void TellUnused() {
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
          const std::string meant = MeantOption(*setting, s_.asked());
          unknown.insert(meant.empty() ? setting->written
                                       : absl::StrCat(setting->written, " (did you mean ", meant, "?)"));
          break;
        }
        case OptionKind::kNotSupported:
          TellNotSupported(*setting);
          break;
      }
    }
    TellNames("without_effect", "without effect on the result, and left behind: ", without_effect);
    std::set<std::string> environment;
    for (const auto& [name, variable] : s_.variables()) {
      // The rule `connections` has reported it.
      if (name == "CUDA_DEVICE_MAX_CONNECTIONS" && variable.values.front() == "1") continue;
      for (const char* beginning : {"NCCL_", "CUDA_", "TORCH_", "PYTORCH_", "NVTE_"}) {
        if (absl::StartsWith(name, beginning)) environment.insert(name);
      }
    }
    TellNames("environment", "of the environment, which the agents' own is here: ", environment);
    TellNames("of_launcher", "the launcher's, whose work the agents do: ", of_launcher);
    TellNames("not_known", "not known here, and left behind; look whether they change the result: ", unknown);
  }

  void TellNotSupported(const Setting& setting) {
    const absl::string_view meaning = MeaningOf(setting);
    c_.Error("not_supported", setting.name.c_str(),
             meaning.empty() ? "it changes the model, the data or the numbers, and is not supported"
                             : absl::StrCat(meaning, meaning.back() == ')' ? ": " : " is ", "not supported"),
             "leave it out if it may go");
  }

  void TellNames(const char* rule, const char* what, const std::set<std::string>& names) {
    if (names.empty()) return;
    c_.Fault(rule, FaultLevel::kWarn, "",
             absl::StrCat(names.size(), names.size() == 1 ? " setting is " : " settings are ", what,
                          absl::StrJoin(names, ", ")),
             "");
  }

  Conversion c_;
  Settings& s_;
  v1::JobSpec& job_;
};

}  // namespace

SpecFaults JobOfMegatron(Settings* settings, const Cluster& cluster, const std::string& file,
                         v1::JobSpec* job) {
  return Converter(settings, file, job).Run(cluster);
}

}  // namespace fsdpd
