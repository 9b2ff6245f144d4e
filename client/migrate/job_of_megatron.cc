#include "client/migrate/job_of_megatron.h"

#include <absl/strings/ascii.h>
#include <absl/strings/match.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <absl/strings/str_replace.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "client/migrate/megatron_options.h"

namespace fsdpd {
namespace {

constexpr int64_t kGpt2Vocabulary = 50257;
constexpr double kInitialDeviation = 0.02;  // Of matrices, as fsdp/model/unit/initial_values.h draws them.

class Converter {
 public:
  Converter(Settings* settings, const std::string& file, v1::JobSpec* job)
      : s_(*settings), file_(file), job_(*job) {}

  SpecFaults Run(const Cluster& cluster) {
    job_.set_name("migrated");
    job_.mutable_resources()->set_nodes(Count(cluster.nodes, "nnodes", 1));
    job_.mutable_resources()->set_ranks_per_node(Count(cluster.ranks_per_node, "nproc_per_node", 8));
    job_.mutable_resources()->set_device(v1::DEVICE_CUDA);
    Model();
    Data();
    Train();
    Evaluation();
    Optimizer();
    Schedule();
    Precision();
    Fsdp();
    Recompute();
    Parallel();
    Checkpoint();
    TellUnused();
    faults_.insert(faults_.end(), s_.number_faults().begin(), s_.number_faults().end());
    return std::move(faults_);
  }

 private:
  void Fault(const char* rule, FaultLevel level, const char* setting, const std::string& reason,
             const std::string& fix) {
    const Setting* found = *setting == '\0' ? nullptr : s_.Find(setting);
    SpecFault fault;
    fault.place = found != nullptr ? found->place : Place{file_, 0, 0};
    fault.violation = {rule, level, found != nullptr ? found->written : setting, reason, fix, "", ""};
    faults_.push_back(std::move(fault));
  }

  // What is not carried over as it stands, with both values.
  void Adjust(const char* rule, const char* setting, const std::string& reason, const std::string& before,
              const std::string& after) {
    Fault(rule, FaultLevel::kAdjust, setting, reason, "");
    faults_.back().violation.before = before;
    faults_.back().violation.after = after;
  }

  int64_t Required(const char* name) {
    const std::optional<int64_t> value = s_.Integer(name);
    if (!value.has_value()) {
      Fault("required", FaultLevel::kError, name, "it is not set, and the job needs it",
            absl::StrCat("add ", name, " (--", absl::StrReplaceAll(name, {{"_", "-"}}), ")"));
    }
    return value.value_or(0);
  }

  // Nodes or ranks: the command line's word, or torchrun's, which may be a range or "auto".
  int64_t Count(std::optional<int64_t> asked, const char* setting, int64_t otherwise) {
    const std::optional<std::string> text = s_.Text(setting);
    int64_t said = 0;
    const bool plain = text.has_value() && absl::SimpleAtoi(*text, &said) && said > 0;
    if (text.has_value() && !plain && !asked.has_value()) {
      Adjust("torchrun_count", setting, "only a number says how many ranks there are", *text,
             absl::StrCat(otherwise));
    }
    if (plain && asked.has_value() && *asked != said) {
      Adjust("torchrun_count", setting, "the command line of migrate says otherwise", *text,
             absl::StrCat(*asked));
    }
    return asked.value_or(plain ? said : otherwise);
  }

  // A length that Megatron counts in steps or in samples.
  std::optional<int64_t> Steps(const char* iterations, const char* samples) {
    const std::optional<int64_t> steps = s_.Integer(iterations);
    const std::optional<int64_t> count = s_.Integer(samples);
    const int64_t batch = job_.train().global_batch();
    if (!count.has_value() || *count == 0 || batch <= 0 || steps.value_or(0) != 0) return steps;
    const int64_t whole = *count / batch;
    Adjust("samples_are_steps", samples,
           absl::StrCat("a step has ", batch, " samples, and whole steps count here"),
           absl::StrCat(*count, " samples"), absl::StrCat(whole, " steps"));
    return whole;
  }

  // Two families, told apart by what they are made of.
  void Model() {
    const std::string norm = s_.Lower("normalization").value_or("layernorm");
    const bool rotary = s_.Flag("use_rotary_position_embeddings");
    const std::string positions =
        s_.Lower("position_embedding_type").value_or(rotary ? "rope" : "learned_absolute");
    const bool gated = s_.Flag("swiglu");
    s_.Find("activation_func");
    InitialValues();
    const bool llama = gated && norm == "rmsnorm" && positions == "rope";
    const bool gpt2 = !gated && norm == "layernorm" && positions == "learned_absolute";
    if (llama) return Llama();
    if (gpt2) return Gpt2();
    Fault("model_family", FaultLevel::kError, gated ? "swiglu" : "normalization",
          absl::StrCat("a model with ", norm, ", ", positions, " positions and ",
                       gated ? "a gated" : "a plain", " feed-forward is of no family that is known"),
          "known are Llama's (rmsnorm, rope, swiglu) and GPT-2's (layernorm, learned_absolute, gelu)");
    gated ? Llama() : Gpt2();  // What is at fault with its sizes is told too.
  }

  void InitialValues() {
    for (const char* name : {"init_method_std", "embedding_init_method_std"}) {
      if (s_.Real(name).value_or(kInitialDeviation) == kInitialDeviation) continue;
      Fault("initial_values", FaultLevel::kError, name,
            absl::StrCat("matrices begin with a deviation of ", kInitialDeviation, " here, always"),
            absl::StrCat("write ", kInitialDeviation, " when that will do"));
    }
  }

  int64_t Vocabulary(int64_t otherwise) {
    for (const char* name : {"vocab_size", "padded_vocab_size"}) {
      const std::optional<int64_t> size = s_.Integer(name);
      if (size.has_value()) return Padded(*size);
    }
    if (otherwise != 0) return Padded(otherwise);
    Fault("required", FaultLevel::kError, "vocab_size",
          "it is not set: Megatron takes it from the tokenizer, which is not read here",
          "add --vocab-size N");
    return 0;
  }

  // Megatron pads the embedding; the rows exist and train.
  int64_t Padded(int64_t size) {
    const int64_t multiple = s_.Integer("make_vocab_size_divisible_by").value_or(128) *
                             s_.Integer("tensor_model_parallel_size").value_or(1);
    return multiple <= 0 ? size : (size + multiple - 1) / multiple * multiple;
  }

  void Llama() {
    v1::Llama* llama = job_.mutable_model()->mutable_llama();
    llama->set_vocab_size(Vocabulary(0));
    llama->set_hidden_size(Required("hidden_size"));
    llama->set_layers(Required("num_layers"));
    llama->set_heads(Required("num_attention_heads"));
    // Megatron's default for gated feed-forwards: two thirds of four times, in multiples of 64.
    const int64_t two_thirds = llama->hidden_size() * 4 * 2 / 3 / 64 * 64;
    llama->set_intermediate_size(s_.Integer("ffn_hidden_size").value_or(two_thirds));
    const bool grouped = s_.Flag("group_query_attention", s_.Find("num_query_groups") != nullptr);
    if (grouped) llama->set_kv_heads(s_.Integer("num_query_groups").value_or(1));
    if (const auto size = s_.Integer("kv_channels")) llama->set_head_size(*size);
    if (const auto longest = s_.Integer("max_position_embeddings")) llama->set_positions(*longest);
    llama->set_rope_theta(s_.Real("rotary_base").value_or(10000));
    llama->set_norm_epsilon(s_.Real("norm_epsilon").value_or(1e-5));
    llama->set_tied_embeddings(s_.Flag("share_embeddings_and_output_weights", true));
    llama->set_qk_norm(s_.Flag("qk_norm"));
    llama->set_attention_bias(s_.Flag("add_qkv_bias"));
    if (s_.Flag("add_bias_linear", true)) {
      Fault("linear_biases", FaultLevel::kError, "add_bias_linear",
            "Llama's linear layers have no biases here",
            "add --disable-bias-linear (add_bias_linear: false)");
    }
    if (s_.Flag("rope_scaling")) {
      llama->mutable_rope_scaling()->set_factor(s_.Real("rope_scaling_factor").value_or(8));
    }
    if (s_.Real("rotary_percent").value_or(1) != 1) {
      Fault("rotary_percent", FaultLevel::kError, "rotary_percent", "heads are turned as a whole",
            "only rotary_percent 1 is supported");
    }
    Dropouts();
  }

  void Gpt2() {
    v1::Gpt2* gpt2 = job_.mutable_model()->mutable_gpt2();
    gpt2->set_vocab_size(Vocabulary(kGpt2Vocabulary));
    gpt2->set_hidden_size(Required("hidden_size"));
    gpt2->set_layers(Required("num_layers"));
    gpt2->set_heads(Required("num_attention_heads"));
    gpt2->set_positions(Required("max_position_embeddings"));
    if (const auto size = s_.Integer("ffn_hidden_size")) gpt2->set_intermediate_size(*size);
    gpt2->set_norm_epsilon(s_.Real("norm_epsilon").value_or(1e-5));
    gpt2->set_untied_embeddings(!s_.Flag("share_embeddings_and_output_weights", true));
    s_.Find("add_bias_linear");
    Dropouts();
  }

  // Megatron's default is 0.1.
  void Dropouts() {
    for (const char* name : {"attention_dropout", "hidden_dropout"}) {
      const double rate = s_.Real(name).value_or(0.1);
      if (rate == 0) continue;
      Fault("dropout", FaultLevel::kWarn, name,
            absl::StrCat("dropout ", rate, " is not carried over: there is none"),
            "add 0.0 to say that none is meant");
    }
    s_.Find("max_position_embeddings");
  }

  void Files(const char* setting, google::protobuf::RepeatedPtrField<v1::TokenFile>* files) {
    const Setting* paths = s_.Find(setting);
    if (paths == nullptr) return;
    double weight = 0;
    for (const std::string& value : paths->values) {
      double number = 0;
      if (absl::SimpleAtod(value, &number)) {
        weight = number;
        continue;
      }
      v1::TokenFile* file = files->Add();
      file->set_path(value);
      file->set_type(v1::TOKEN_TYPE_MEGATRON);
      if (weight > 0) file->set_weight(weight);
      weight = 0;
    }
  }

  void Data() {
    v1::Data* data = job_.mutable_data();
    data->set_sequence_length(Required("seq_length"));
    Files(s_.Find("train_data_path") != nullptr ? "train_data_path" : "data_path", data->mutable_tokens());
    Files("valid_data_path", data->mutable_validation());
    const bool mock = s_.Flag("mock_data");
    if (data->tokens().empty()) data->mutable_synthetic();
    if (data->tokens().empty() && !mock) {
      Fault("no_data", FaultLevel::kWarn, "data_path", "no data_path is set: random tokens are used",
            "name the data in the spec");
    }
    if (s_.Lower("dataloader_type").value_or("single") != "single") {
      Fault("data_order", FaultLevel::kError, "dataloader_type", "each sample is seen once in an epoch",
            "write single");
    }
    // Of mock data there is no part that is not like the others.
    if (const auto split = s_.Text("split"); split.has_value() && !data->tokens().empty()) {
      Adjust("split", "split",
             "files are trained on whole; name files for validation in data.validation, cut off the training "
             "files",
             *split, "all");
    }
  }

  void Train() {
    v1::Train* train = job_.mutable_train();
    const int64_t world = job_.resources().nodes() * job_.resources().ranks_per_node();
    train->set_micro_batch(s_.Integer("micro_batch_size").value_or(1));
    train->set_global_batch(s_.Integer("global_batch_size").value_or(train->micro_batch() * world));
    const std::optional<int64_t> steps = Steps("train_iters", "train_samples");
    train->set_steps(steps.has_value() ? *steps : Required("train_iters"));
    train->set_seed(s_.Integer("seed").value_or(1234));
  }

  void Evaluation() {
    const int64_t every = s_.Integer("eval_interval").value_or(0);
    const std::optional<int64_t> rounds = s_.Integer("eval_iters");
    if (every <= 0 || (rounds.has_value() && *rounds == 0)) return;
    if (job_.data().validation().empty()) {
      return Adjust("no_evaluation", "eval_interval", "there are no files for validation to evaluate on",
                    absl::StrCat("every ", every, " steps"), "never");
    }
    job_.mutable_train()->mutable_evaluation()->set_every_steps(every);
    if (!rounds.has_value()) return;
    job_.mutable_train()->mutable_evaluation()->set_samples(*rounds * job_.train().global_batch());
  }

  void Optimizer() {
    v1::Optimizer* optimizer = job_.mutable_optimizer();
    optimizer->set_clip_norm(s_.Real("clip_grad").value_or(1));
    const double lr = s_.Real("lr").value_or(0);
    if (lr <= 0) Fault("required", FaultLevel::kError, "lr", "the learning rate is not set", "add --lr");
    const double decay = WeightDecay();
    if (s_.Lower("optimizer").value_or("adam") == "sgd") {
      v1::Sgd* sgd = optimizer->mutable_sgd();
      sgd->set_lr(lr);
      sgd->set_momentum(s_.Real("sgd_momentum").value_or(0.9));
      sgd->set_weight_decay(decay);
      return;
    }
    v1::AdamW* adamw = optimizer->mutable_adamw();
    adamw->set_lr(lr);
    adamw->add_betas(s_.Real("adam_beta1").value_or(0.9));
    adamw->add_betas(s_.Real("adam_beta2").value_or(0.999));
    adamw->set_eps(s_.Real("adam_eps").value_or(1e-8));
    adamw->set_weight_decay(decay);
    OwnRateOfEnds(lr);
  }

  // Where the schedule has a decay of its own, that is what Megatron uses.
  double WeightDecay() {
    const double decay = s_.Real("weight_decay").value_or(0.01);
    const std::optional<double> start = s_.Real("start_weight_decay");
    const double end = s_.Real("end_weight_decay").value_or(decay);
    if (s_.Lower("weight_decay_incr_style").value_or("constant") == "constant") return end;
    if (start.value_or(decay) != end) {
      Fault("weight_decay_grows", FaultLevel::kError, "weight_decay_incr_style",
            "the decay is the same throughout", "write constant");
    }
    return end;
  }

  // Megatron's decoupled rate is the word embedding's and the output projection's.
  void OwnRateOfEnds(double lr) {
    const std::optional<double> own = s_.Real("decoupled_lr");
    if (!own.has_value() || lr <= 0) return;
    v1::ParamGroup* group = job_.mutable_optimizer()->add_groups();
    group->add_params("embedding.weight");
    const v1::Model& model = job_.model();
    const bool tied = model.has_llama() ? model.llama().tied_embeddings() : !model.gpt2().untied_embeddings();
    if (!tied) group->add_params("head.output");
    group->set_lr_scale(*own / lr);
    Adjust("own_rate", "decoupled_lr", "a group of parameters has a multiple of the rate", absl::StrCat(*own),
           absl::StrCat("lr_scale ", *own / lr));
    const double least = s_.Real("min_lr").value_or(0);
    const double there = s_.Real("decoupled_min_lr").value_or(least), here = least * *own / lr;
    if (std::abs(there - here) <= 1e-9 * there) return;
    Adjust("own_least_rate", s_.Find("decoupled_min_lr") != nullptr ? "decoupled_min_lr" : "decoupled_lr",
           "a group's rate falls as the others' do, to the same part of its peak", absl::StrCat(there),
           absl::StrCat(here));
  }

  int64_t WarmUp() {
    const double from = s_.Real("lr_warmup_init").value_or(0);
    if (from != 0) Adjust("warmup_from", "lr_warmup_init", "a warm-up rises from 0", absl::StrCat(from), "0");
    int64_t warmup = Steps("lr_warmup_iters", "lr_warmup_samples").value_or(0);
    const auto steps = static_cast<double>(job_.train().steps());
    if (const auto fraction = s_.Real("lr_warmup_fraction")) warmup = static_cast<int64_t>(*fraction * steps);
    return warmup;
  }

  void Wsd(int64_t warmup, double ratio) {
    v1::Schedule::Wsd* wsd = job_.mutable_schedule()->mutable_wsd();
    wsd->set_warmup_steps(warmup);
    wsd->set_decay_steps(Steps("wsd_decay_iters", "lr_wsd_decay_samples").value_or(0));
    wsd->set_min_lr_ratio(ratio);
    const std::string style = s_.Lower("lr_wsd_decay_style").value_or("exponential");  // Megatron's own.
    if (style == "linear") return;
    const bool written = s_.Find("lr_wsd_decay_style") != nullptr;
    Adjust("wsd_decay_style", written ? "lr_wsd_decay_style" : "lr_decay_style",
           "the rate falls in a straight line over the last steps", style, "linear");
  }

  void Schedule() {
    const std::string style = s_.Lower("lr_decay_style").value_or("linear");
    const int64_t steps = job_.train().steps();
    const int64_t warmup = WarmUp();
    if (style != "constant" || warmup > 0) {
      Fault("one_step_on", FaultLevel::kWarn, "",
            "a step has the rate that the next one has there: Megatron counts from 0, and here from 1", "");
    }
    const double lr = std::max(job_.optimizer().adamw().lr(), job_.optimizer().sgd().lr());
    const double ratio = lr > 0 ? s_.Real("min_lr").value_or(0) / lr : 0;
    v1::Schedule* schedule = job_.mutable_schedule();
    if (style == "constant") {
      schedule->mutable_constant()->set_warmup_steps(warmup);
    } else if (style == "linear") {
      schedule->mutable_linear()->set_warmup_steps(warmup);
      schedule->mutable_linear()->set_min_lr_ratio(ratio);
    } else if (style == "cosine") {
      schedule->mutable_cosine()->set_warmup_steps(warmup);
      schedule->mutable_cosine()->set_min_lr_ratio(ratio);
    } else if (style == "wsd") {
      Wsd(warmup, ratio);
    } else {
      Fault("schedule", FaultLevel::kError, "lr_decay_style", absl::StrCat("'", style, "' is not supported"),
            "use constant, linear, cosine or WSD");
    }
    const std::optional<int64_t> decay = Steps("lr_decay_iters", "lr_decay_samples");
    if (decay.has_value() && *decay != steps && style != "constant") {
      Fault("decay_length", FaultLevel::kWarn, "lr_decay_iters",
            absl::StrCat("the rate falls over ", *decay, " steps there and over the job's ", steps, " here"),
            "set train.steps, or another schedule");
    }
  }

  void Precision() {
    v1::Precision* precision = job_.mutable_precision();
    const std::string recipe = s_.Lower("mixed_precision").value_or("");
    const bool bf16 = s_.Flag("bf16") || absl::StrContains(recipe, "bf16");
    const bool fp16 = s_.Flag("fp16") || absl::StrContains(recipe, "fp16");
    s_.Find("hysteresis");  // Of fp16 alone.
    precision->set_compute(bf16 ? v1::DTYPE_BF16 : fp16 ? v1::DTYPE_FP16 : v1::DTYPE_FP32);
    if (fp16) {
      const std::optional<double> initial = s_.Real("initial_loss_scale");
      const std::optional<int64_t> window = s_.Integer("loss_scale_window");
      if (initial.has_value()) precision->mutable_loss_scale()->set_initial(*initial);
      if (window.has_value()) precision->mutable_loss_scale()->set_growth_interval(*window);
      const int64_t hysteresis = s_.Integer("hysteresis").value_or(2);
      if (hysteresis != 1) {
        Adjust("loss_scale_hysteresis", "hysteresis", "every overflow halves the scale",
               absl::StrCat(hysteresis), "1");
      }
    }
    const v1::DType own = bf16 ? v1::DTYPE_BF16 : v1::DTYPE_FP32;  // `auto` there: the parameters' type.
    precision->set_main_params(Type("megatron_fsdp_main_params_dtype", v1::DTYPE_FP32));
    precision->set_main_grads(Type("megatron_fsdp_main_grads_dtype", own));
    precision->set_grad_comm(Type("megatron_fsdp_grad_comm_dtype", precision->main_grads()));
    precision->set_moments(Type("exp_avg_dtype", v1::DTYPE_FP32));
    if (Type("exp_avg_sq_dtype", precision->moments()) != precision->moments()) {
      Fault("moments_differ", FaultLevel::kError, "exp_avg_sq_dtype", "both moments have one type",
            "write the same for exp_avg_dtype and exp_avg_sq_dtype");
    }
  }

  // What another type would mean is for the spec's own rules to say.
  v1::DType Type(const char* setting, v1::DType otherwise) {
    const std::string text = s_.Lower(setting).value_or("auto");
    if (absl::EndsWith(text, "fp32") || absl::EndsWith(text, "float32")) return v1::DTYPE_FP32;
    if (absl::EndsWith(text, "bf16") || absl::EndsWith(text, "bfloat16")) return v1::DTYPE_BF16;
    if (absl::EndsWith(text, "fp16") || absl::EndsWith(text, "float16")) return v1::DTYPE_FP16;
    if (text == "auto") return otherwise;
    Fault("type_known", FaultLevel::kError, setting, absl::StrCat("'", text, "' is not supported"),
          "write fp32 or bf16");
    return otherwise;
  }

  void Fsdp() {
    v1::Fsdp* fsdp = job_.mutable_fsdp();
    const std::string strategy_name =
        s_.Lower("data_parallel_sharding_strategy").value_or("optim_grads_params");
    v1::Strategy strategy = v1::STRATEGY_OPTIM_GRADS_PARAMS;
    v1::Strategy_Parse(absl::StrCat("STRATEGY_", absl::AsciiStrToUpper(strategy_name)), &strategy);
    fsdp->set_strategy(strategy);
    const int64_t instances = s_.Integer("num_distributed_optimizer_instances").value_or(1);
    if (instances > 1) {
      fsdp->mutable_outer()->set_size(instances);
      const bool optim = s_.Lower("outer_dp_sharding_strategy").value_or("no_shard") == "optim";
      fsdp->mutable_outer()->set_strategy(optim ? v1::STRATEGY_OPTIM : v1::STRATEGY_NO_SHARD);
    }
    // Half of it, in elements, is what Megatron-FSDP prefetches.
    const std::optional<int64_t> in_flight = s_.Integer("suggested_communication_unit_size");
    if (in_flight.has_value() && strategy == v1::STRATEGY_OPTIM_GRADS_PARAMS) {
      const int64_t element_bytes = job_.precision().compute() == v1::DTYPE_FP32 ? 4 : 2;
      fsdp->set_prefetch_bytes(*in_flight / 2 * element_bytes);
    }
  }

  void Recompute() {
    const std::string granularity = s_.Lower("recompute_granularity").value_or("");
    s_.Find("recompute_method");
    s_.Find("recompute_modules");
    v1::Fsdp* fsdp = job_.mutable_fsdp();
    fsdp->set_recompute(granularity == "full"        ? v1::RECOMPUTE_FULL
                        : granularity == "selective" ? v1::RECOMPUTE_SELECTIVE
                                                     : v1::RECOMPUTE_NONE);
    const std::optional<int64_t> layers = s_.Integer("recompute_num_layers");
    if (!layers.has_value() || granularity != "full") return;
    // "uniform" recomputes all layers, in groups; "block" the first so many.
    if (s_.Lower("recompute_method").value_or("uniform") == "block") fsdp->set_recompute_layers(*layers);
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
    if (const auto load = s_.Text("load")) checkpoint->set_load(*load);
    if (s_.Find("save") == nullptr && s_.Find("load") == nullptr) job_.clear_checkpoint();
  }

  void TellUnused() {
    std::set<std::string> without_effect, unknown;
    for (const Setting* setting : s_.unused()) {
      switch (KindOf(*setting)) {
        case OptionKind::kWithoutEffect:
          without_effect.insert(setting->written);
          break;
        case OptionKind::kUnknown:
          unknown.insert(setting->written);
          break;
        case OptionKind::kNotSupported:
          Fault("not_supported", FaultLevel::kError, setting->name.c_str(),
                "it changes the model, the data or the numbers, and is not supported",
                "leave it out if it may go");
          break;
      }
    }
    TellNames("without_effect", "without effect on the result, and left behind: ", without_effect);
    TellNames("not_known", "not known here, and left behind; look whether they change the result: ", unknown);
  }

  void TellNames(const char* rule, const char* what, const std::set<std::string>& names) {
    if (names.empty()) return;
    Fault(rule, FaultLevel::kWarn, "",
          absl::StrCat(names.size(), names.size() == 1 ? " setting is " : " settings are ", what,
                       absl::StrJoin(names, ", ")),
          "");
  }

  Settings& s_;
  const std::string file_;
  v1::JobSpec& job_;
  SpecFaults faults_;
};

}  // namespace

SpecFaults JobOfMegatron(Settings* settings, const Cluster& cluster, const std::string& file,
                         v1::JobSpec* job) {
  return Converter(settings, file, job).Run(cluster);
}

}  // namespace fsdpd
