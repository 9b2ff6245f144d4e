#include "client/migrate/megatron_training.h"

#include <absl/strings/match.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_split.h>
#include <absl/strings/string_view.h>

#include <algorithm>
#include <cmath>

namespace fsdpd {
namespace {

// Modules of Megatron with adapters, and our matrices.
struct AdapterModule {
  absl::string_view theirs, ours;
};
constexpr AdapterModule kAdapterModules[] = {
    {"linear_qkv", "*.attention.wq *.attention.wk *.attention.wv"},
    {"linear_q", "*.attention.wq"},
    {"linear_k", "*.attention.wk"},
    {"linear_v", "*.attention.wv"},
    {"linear_proj", "*.attention.wo"},
    {"linear_fc1", "*.ffn.w1 *.ffn.w3"},
    {"linear_fc1_gate", "*.ffn.w1"},
    {"linear_fc1_up", "*.ffn.w3"},
    {"linear_fc2", "*.ffn.w2"},
};

class TrainingConverter {
 public:
  explicit TrainingConverter(SpecConversion* conversion)
      : c_(*conversion), s_(conversion->settings), job_(conversion->job) {}

  void Run() {
    ConvertData();
    ConvertTrain();
    ConvertAdapters();
    ConvertEvaluation();
    ConvertOptimizer();
    ConvertSchedule();
  }

 private:
  void AddFiles(const char* setting, google::protobuf::RepeatedPtrField<v1::TokenFile>* files) {
    const Setting* paths = s_.Find(setting);
    if (paths == nullptr || paths->open) return;
    double weight = 0;
    for (const std::string& value : paths->values) {
      double number = 0;
      if (absl::SimpleAtod(value, &number)) {
        weight = number;
        continue;
      }
      if (value.empty()) continue;
      v1::TokenFile* file = files->Add();
      file->set_path(value);
      file->set_type(v1::TOKEN_TYPE_MEGATRON);
      if (weight > 0) file->set_weight(weight);
      weight = 0;
    }
  }

  void ConvertData() {
    v1::Data* data = job_.mutable_data();
    c_.Fill("data");
    AddFiles(s_.Find("train_data_path") != nullptr ? "train_data_path" : "data_path", data->mutable_tokens());
    AddFiles("valid_data_path", data->mutable_validation());
    const bool mock = s_.Flag("mock_data");
    if (data->tokens().empty()) data->mutable_synthetic();
    if (data->tokens().empty() && !mock) {
      c_.Report("no_data", "data_path", {"is not set"});
    }
    if (data->tokens_size() > 1) ReportDataWeights();
    ConvertDocuments();
    if (s_.Lower("dataloader_type", "single") != "single") {
      c_.Report("data_order", "dataloader_type");
    }
    // Mock data is random, so a split of it has no effect.
    if (const auto split = s_.Text("split"); split.has_value() && !data->tokens().empty()) {
      c_.Adjust("split", "split", *split, "all");
    }
  }

  // A spec resets positions, attention and loss at document ends together (document_end_token). Without
  // eod_mask_loss, Megatron also trains the prediction of a document's first token from the previous
  // document.
  void ConvertDocuments() {
    const bool positions = s_.Flag("reset_position_ids"), attention = s_.Flag("reset_attention_mask");
    const bool loss = s_.Flag("eod_mask_loss");
    const std::optional<int64_t> end = s_.Integer("null_tokenizer_eod_id");
    if (!positions && !attention && !loss) return;
    if (!positions || !attention) {
      const char* const only_one = attention   ? "reset_attention_mask"
                                   : positions ? "reset_position_ids"
                                               : "eod_mask_loss";
      c_.Report("documents_apart", only_one);
      return;
    }
    if (!loss) {
      c_.Adjust("documents_first_token", "reset_attention_mask", "eod_mask_loss: false", "true");
    }
    if (end.has_value()) {
      job_.mutable_data()->set_document_end_token(*end);
    } else if (s_.Find("null_tokenizer_eod_id") == nullptr) {
      c_.Report("document_end", "reset_attention_mask");
    }
  }

  // Without explicit weights Megatron weights files by length, and a spec weights them equally.
  void ReportDataWeights() {
    for (const v1::TokenFile& file : job_.data().tokens()) {
      if (file.has_weight()) return;
    }
    c_.Adjust("data_weights", s_.Find("train_data_path") != nullptr ? "train_data_path" : "data_path",
              "by length", "equal");
  }

  void ConvertTrain() {
    v1::Train* train = job_.mutable_train();
    c_.Fill("train");
    train->set_global_batch(s_.Integer("global_batch_size")
                                .value_or(SpecConversion::Times(train->micro_batch(), c_.CountReplicas())));
    const std::optional<int64_t> steps = c_.Steps("train_iters", "train_samples");
    train->set_steps(steps.has_value() ? *steps : c_.Required("train_iters"));
  }

  // LoRA of Megatron Bridge. An adapter of its fused matrices is one adapter per matrix here.
  void ConvertAdapters() {
    const auto is_set = [&](const char* name) { return s_.Find(name) != nullptr; };
    if (!is_set("peft_dim") && !is_set("peft_alpha") && !is_set("peft_target_modules")) return;
    v1::Lora* lora = job_.mutable_train()->mutable_lora();
    c_.Fill("train.lora");
    if (const auto kind = s_.Text("peft__target_"); kind.has_value() && !absl::EndsWith(*kind, "LoRA"))
      c_.Report("not_supported", "peft__target_", {absl::StrCat(*kind, ": only LoRA is supported")});
    const Setting* modules = s_.Find("peft_target_modules");
    const std::vector<std::string> every = {"linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"};
    for (const std::string& module : modules == nullptr ? every : modules->values) {
      const auto found = std::find_if(std::begin(kAdapterModules), std::end(kAdapterModules),
                                      [&](const AdapterModule& each) { return each.theirs == module; });
      if (found == std::end(kAdapterModules)) {
        c_.Report("adapter_module", "peft_target_modules", {module});
        continue;
      }
      for (const absl::string_view ours : absl::StrSplit(found->ours, ' '))
        lora->add_targets(std::string(ours));
    }
    const std::string initial = s_.Lower("peft_lora_A_init_method", "xavier");
    if (initial != "kaiming" && initial != "uniform")
      c_.Adjust("adapter_initial", "peft_lora_A_init_method", initial, "kaiming");
    if (const auto base = s_.Text("pretrained_checkpoint")) lora->set_base_model(*base);
  }

  void ConvertEvaluation() {
    const int64_t every = s_.Integer("eval_interval", 0);
    const std::optional<int64_t> rounds = s_.Integer("eval_iters");
    const bool all = s_.Flag("full_validation");
    if (every <= 0 || (rounds.has_value() && *rounds == 0)) return;
    if (job_.data().validation().empty()) {
      return c_.Adjust("no_evaluation", "eval_interval", absl::StrCat("every ", every, " steps"), "never");
    }
    v1::Evaluation* evaluation = job_.mutable_train()->mutable_evaluation();
    evaluation->set_every_steps(every);
    if (rounds.has_value() && !all)
      evaluation->set_samples(SpecConversion::Times(*rounds, job_.train().global_batch()));
  }

  void ConvertOptimizer() {
    v1::Optimizer* optimizer = job_.mutable_optimizer();
    c_.Fill("optimizer");
    if (s_.Find("lr") == nullptr) c_.Report("required", "lr", {"is not set", "add --lr"});
    const double lr = s_.Real("lr", 1);  // Real() reports an invalid number.
    if (lr <= 0) c_.Report("lr_positive", "lr", {lr});
    const double decay = ChooseWeightDecay();
    const auto fill = [&](const char* message, auto* to) {
      c_.Fill(message);
      to->set_lr(lr);
      to->set_weight_decay(decay);
    };
    if (s_.Lower("optimizer", "adam") == "sgd") {
      fill("optimizer.sgd", optimizer->mutable_sgd());
    } else {
      fill("optimizer.adamw", optimizer->mutable_adamw());
    }
    ConvertEmbeddingGroups(lr);
  }

  // Megatron's schedule has its own weight decay (start and end), which overrides weight_decay.
  double ChooseWeightDecay() {
    const double decay = s_.Real("weight_decay", 0.01);
    const std::optional<double> start = s_.Real("start_weight_decay");
    const double end = s_.Real("end_weight_decay", decay);
    if (s_.Lower("weight_decay_incr_style", "constant") == "constant") return end;
    if (start.value_or(decay) != end) c_.Report("weight_decay_grows", "weight_decay_incr_style");
    return end;
  }

  // Parameter groups of the word embedding and the output projection. decoupled_lr is the learning rate of
  // both. If embedding_init_method_std is set, even to its default, embeddings have no weight decay in
  // Megatron. The first group that matches a parameter applies.
  void ConvertEmbeddingGroups(double lr) {
    const double asked = s_.Real("decoupled_lr", 0), own = lr > 0 ? asked : 0;
    const double least = s_.Real("min_lr", 0);
    const double there = s_.Real("decoupled_min_lr", least), here = lr > 0 ? least * own / lr : 0;
    if (job_.train().initial().has_embedding_std()) {
      v1::ParamGroup* embedding = job_.mutable_optimizer()->add_groups();
      embedding->add_params("embedding.*");
      embedding->set_weight_decay(0);
      if (own > 0) embedding->set_lr_scale(own / lr);
      c_.Adjust("embedding_decay", "embedding_init_method_std", "no decay", "weight_decay 0");
    }
    if (own <= 0) return;
    v1::ParamGroup* ends = job_.mutable_optimizer()->add_groups();
    ends->add_params("embedding.weight");
    const v1::Model& model = job_.model();
    const bool tied = model.has_llama() ? model.llama().tied_embeddings() : !model.gpt2().untied_embeddings();
    if (!tied) ends->add_params("head.output");
    ends->set_lr_scale(own / lr);
    c_.Adjust("own_rate", "decoupled_lr", own, absl::StrCat("lr_scale ", own / lr));
    if (std::abs(there - here) <= 1e-9 * there) return;
    c_.Adjust("own_least_rate", s_.Find("decoupled_min_lr") != nullptr ? "decoupled_min_lr" : "decoupled_lr",
              there, here);
  }

  // Clamps to the range of exact integers, because lr_warmup_fraction has no bound in Megatron.
  static int64_t ClampToInteger(double steps) {
    constexpr double kExact = 9007199254740992.0;  // 2^53
    return static_cast<int64_t>(std::max(-kExact, std::min(kExact, steps)));
  }

  // lr_warmup_fraction is a fraction of the decay steps, not of the run's steps.
  int64_t ConvertWarmup(int64_t decay_steps) {
    const double from = s_.Real("lr_warmup_init", 0);
    const int64_t warmup = c_.Steps("lr_warmup_iters", "lr_warmup_samples").value_or(0);
    const std::optional<double> fraction = s_.Real("lr_warmup_fraction");
    const int64_t steps =
        fraction.has_value() ? ClampToInteger(*fraction * static_cast<double>(decay_steps)) : warmup;
    if (from != 0 && steps > 0) c_.Adjust("warmup_from", "lr_warmup_init", from, "0");
    return steps;
  }

  void ConvertWsd(v1::Schedule::Wsd* wsd) {
    wsd->set_decay_steps(c_.Steps("wsd_decay_iters", "lr_wsd_decay_samples").value_or(0));
    const std::string style = s_.Lower("lr_wsd_decay_style", "exponential");  // Megatron's default.
    if (style == "linear") return;
    const bool written = s_.Find("lr_wsd_decay_style") != nullptr;
    c_.Adjust("wsd_decay_style", written ? "lr_wsd_decay_style" : "lr_decay_style", style, "linear");
  }

  void ConvertSchedule() {
    const std::string style = s_.Lower("lr_decay_style", "linear");
    const int64_t steps = job_.train().steps();
    const std::optional<int64_t> decay = c_.Steps("lr_decay_iters", "lr_decay_samples");
    const int64_t warmup = ConvertWarmup(decay.value_or(steps));
    if (style != "constant" || warmup > 0) c_.Report("one_step_on", "");
    const double lr = std::max(job_.optimizer().adamw().lr(), job_.optimizer().sgd().lr());
    const double ratio = lr > 0 ? s_.Real("min_lr", 0) / lr : 0;
    v1::Schedule* schedule = job_.mutable_schedule();
    const auto fill = [&](auto* shape) {
      shape->set_warmup_steps(warmup);
      if (ratio != 0) shape->set_min_lr_ratio(ratio);
    };
    if (style == "constant") {
      schedule->mutable_constant()->set_warmup_steps(warmup);
    } else if (style == "linear") {
      fill(schedule->mutable_linear());
    } else if (style == "cosine") {
      fill(schedule->mutable_cosine());
    } else if (style == "wsd") {
      fill(schedule->mutable_wsd());
      ConvertWsd(schedule->mutable_wsd());
    } else {
      c_.Report("schedule", "lr_decay_style", {style});
    }
    if (decay.has_value() && *decay != steps && style != "constant") {
      const char* setting = s_.Find("lr_decay_iters") != nullptr ? "lr_decay_iters" : "lr_decay_samples";
      c_.Adjust("decay_length", setting, absl::StrCat(*decay, " steps"), absl::StrCat(steps, " steps"));
    }
  }

  SpecConversion& c_;
  Settings& s_;
  v1::JobSpec& job_;
};

}  // namespace

void ConvertTraining(SpecConversion* conversion) { TrainingConverter(conversion).Run(); }

}  // namespace fsdpd
