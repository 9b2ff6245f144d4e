#include "fsdp/plan/spec/spec.h"

#include <cmath>
#include <utility>

#include "base/check.h"

namespace fsdpd {
namespace {

DType ToDType(v1::DType dtype) {
  switch (dtype) {
    case v1::DTYPE_BF16:
    case v1::DTYPE_FP8:  // Storage only; not a compute type.
      return DType::kBf16;
    case v1::DTYPE_FP16:
      return DType::kFp16;
    default:
      FSDPD_CHECK(dtype == v1::DTYPE_FP32);
      return DType::kFp32;
  }
}

Strategy ToStrategy(v1::Strategy strategy) {
  switch (strategy) {
    case v1::STRATEGY_NO_SHARD:
      return Strategy::kNoShard;
    case v1::STRATEGY_OPTIM:
      return Strategy::kOptim;
    case v1::STRATEGY_OPTIM_GRADS:
      return Strategy::kOptimGrads;
    default:
      FSDPD_CHECK(strategy == v1::STRATEGY_OPTIM_GRADS_PARAMS);
      return Strategy::kOptimGradsParams;
  }
}

Recompute ToRecompute(v1::Recompute recompute) {
  if (recompute == v1::RECOMPUTE_FULL) return Recompute::kFull;
  return recompute == v1::RECOMPUTE_SELECTIVE ? Recompute::kSelective : Recompute::kNone;
}

TokenType ToTokenType(v1::TokenType type) {
  if (type == v1::TOKEN_TYPE_U8) return TokenType::kU8;
  if (type == v1::TOKEN_TYPE_U32) return TokenType::kU32;
  return type == v1::TOKEN_TYPE_MEGATRON ? TokenType::kMegatron : TokenType::kU16;
}

std::vector<TokenSource> ToSources(const google::protobuf::RepeatedPtrField<v1::TokenFile>& files) {
  std::vector<TokenSource> sources;
  for (const v1::TokenFile& file : files) {
    sources.push_back({file.path(), file.weight(), ToTokenType(file.type()), file.mask()});
  }
  return sources;
}

TooLong ToTooLong(v1::TooLong too_long) {
  if (too_long == v1::TOO_LONG_SPLIT) return TooLong::kSplit;
  return too_long == v1::TOO_LONG_DROP ? TooLong::kDrop : TooLong::kTruncate;
}

DataConfig ToData(const v1::Data& data) {
  DataConfig config;
  config.tokens = ToSources(data.tokens());
  config.synthetic_vocab = data.synthetic().vocab();
  config.sequence_length = data.sequence_length();
  config.validation = ToSources(data.validation());
  if (data.has_ignore_index()) config.ignore_index = data.ignore_index();
  if (data.has_document_end_token()) config.document_end_token = data.document_end_token();
  config.packs_documents = data.packing() == v1::PACKING_DOCUMENTS;
  config.too_long = ToTooLong(data.too_long());
  return config;
}

OptimizerConfig ToOptimizer(const v1::Optimizer& optimizer) {
  OptimizerConfig config;
  if (optimizer.has_sgd()) {
    const v1::Sgd& sgd = optimizer.sgd();
    config.kind = OptimizerKind::kSgd;
    config.lr = sgd.lr();
    config.weight_decay = sgd.weight_decay();
    config.momentum = sgd.momentum();
    config.nesterov = sgd.nesterov();
  } else {
    const v1::AdamW& adamw = optimizer.adamw();
    FSDPD_CHECK(adamw.betas_size() == 2);
    config.lr = adamw.lr();
    config.weight_decay = adamw.weight_decay();
    config.beta1 = adamw.betas(0);
    config.beta2 = adamw.betas(1);
    config.eps = adamw.eps();
  }
  config.clip_norm = optimizer.clip_norm();
  for (const v1::ParamGroup& from : optimizer.groups()) {
    ParamGroup group;
    group.patterns.assign(from.params().begin(), from.params().end());
    if (from.has_weight_decay()) group.weight_decay = from.weight_decay();
    if (from.has_lr_scale()) group.lr_scale = from.lr_scale();
    config.groups.push_back(std::move(group));
  }
  return config;
}

InitialConfig ToInitial(const v1::InitialValues& initial) {
  InitialConfig config;
  if (initial.has_std()) config.deviation = initial.std();
  if (initial.has_embedding_std()) config.embedding_deviation = initial.embedding_std();
  if (initial.has_scale_outputs()) config.scale_outputs = initial.scale_outputs();
  return config;
}

ScheduleConfig ToSchedule(const v1::Schedule& schedule) {
  const auto& cosine = schedule.cosine();
  const auto& linear = schedule.linear();
  const auto& wsd = schedule.wsd();
  switch (schedule.shape_case()) {
    case v1::Schedule::kCosine:
      return {ScheduleShape::kCosine, cosine.warmup_steps(), 0, cosine.min_lr_ratio()};
    case v1::Schedule::kLinear:
      return {ScheduleShape::kLinear, linear.warmup_steps(), 0, linear.min_lr_ratio()};
    case v1::Schedule::kWsd:
      return {ScheduleShape::kWsd, wsd.warmup_steps(), wsd.decay_steps(), wsd.min_lr_ratio()};
    default:
      return {ScheduleShape::kConstant, schedule.constant().warmup_steps(), 0, 1};
  }
}

StepAction ToAction(v1::StepAction action) {
  if (action == v1::STEP_ACTION_SKIP) return StepAction::kSkip;
  return action == v1::STEP_ACTION_REWIND ? StepAction::kRewind : StepAction::kStop;
}

OnSpikeConfig ToOnSpike(const v1::OnSpike& on) {
  return {ToAction(on.action()), on.max(), on.grad_norm_factor(), on.window()};
}

CheckpointConfig ToCheckpoint(const v1::Checkpoint& checkpoint) {
  CheckpointConfig config;
  config.dir = checkpoint.dir();
  config.every_steps = checkpoint.every_steps();
  config.every_minutes = checkpoint.every_minutes();
  config.on_end = checkpoint.on_end();
  if (checkpoint.has_keep_last()) config.keep_last = checkpoint.keep_last();
  config.keep_every = checkpoint.keep_every();
  config.load = checkpoint.load();
  if (checkpoint.has_load_optimizer()) config.load_optimizer = checkpoint.load_optimizer();
  config.export_format = checkpoint.export_();
  return config;
}

ExpertsConfig ToExperts(const v1::Llama& llama) {
  const v1::Llama::Experts& experts = llama.experts();
  ExpertsConfig config;
  config.count = experts.count();
  config.per_token = experts.per_token();
  config.intermediate_size =
      experts.has_intermediate_size() ? experts.intermediate_size() : llama.intermediate_size();
  config.normalized = !experts.has_normalized() || experts.normalized();
  config.dense_layers = experts.dense_layers();
  config.balance_loss = experts.balance_loss();
  config.z_loss = experts.z_loss();
  config.sigmoid = experts.scores() == v1::Llama::Experts::SCORES_SIGMOID;
  config.selection_bias = experts.selection_bias();
  if (experts.has_groups()) config.groups = experts.groups();
  config.groups_per_token = experts.has_groups_per_token() ? experts.groups_per_token() : config.groups;
  config.groups_by_best = experts.group_scores() == v1::Llama::Experts::GROUP_SCORES_BEST;
  if (experts.has_weight_scale()) config.weight_scale = experts.weight_scale();
  config.shared_intermediate_size = experts.shared_intermediate_size();
  config.bias_update_rate = experts.bias_update_rate();
  return config;
}

LatentConfig ToLatent(const v1::Llama::LatentAttention& latent) {
  LatentConfig config;
  config.rank = latent.rank();
  config.query_rank = latent.query_rank();
  config.plain_head_size = latent.plain_head_size();
  config.rotary_head_size = latent.rotary_head_size();
  config.value_head_size = latent.value_head_size();
  if (latent.has_interleaved()) config.interleaved = latent.interleaved();
  return config;
}

RopeScaling ToRopeScaling(const v1::Llama::RopeScaling& scaling) {
  RopeScaling config;
  config.yarn = scaling.has_yarn();
  config.factor = scaling.factor();
  if (scaling.has_low_freq_factor()) config.low_freq_factor = scaling.low_freq_factor();
  if (scaling.has_high_freq_factor()) config.high_freq_factor = scaling.high_freq_factor();
  if (scaling.has_original_positions()) config.original_positions = scaling.original_positions();
  if (scaling.yarn().has_mscale()) config.mscale = scaling.yarn().mscale();
  config.mscale_all_dim = scaling.yarn().mscale_all_dim();
  return config;
}

LlamaConfig ToLlama(const v1::Llama& llama) {
  LlamaConfig config;
  config.vocab_size = llama.vocab_size();
  config.hidden_size = llama.hidden_size();
  config.intermediate_size = llama.intermediate_size();
  config.layers = llama.layers();
  config.heads = llama.heads();
  config.kv_heads = llama.has_kv_heads() ? llama.kv_heads() : llama.heads();
  if (llama.has_rope_theta()) config.rope_theta = llama.rope_theta();
  if (llama.has_norm_epsilon()) config.norm_epsilon = llama.norm_epsilon();
  if (llama.has_latent_attention()) config.latent = ToLatent(llama.latent_attention());
  config.head_size = config.latent           ? config.latent.plain_head_size + config.latent.rotary_head_size
                     : llama.has_head_size() ? llama.head_size()
                                             : llama.hidden_size() / llama.heads();
  config.tied_embeddings = llama.tied_embeddings();
  config.qk_norm = llama.qk_norm();
  config.attention_bias = llama.attention_bias();
  config.positions = llama.positions();
  if (llama.has_experts()) config.experts = ToExperts(llama);
  if (llama.has_rope_scaling()) config.rope_scaling = ToRopeScaling(llama.rope_scaling());
  return config;
}

Gpt2Config ToGpt2(const v1::Gpt2& gpt2) {
  Gpt2Config config;
  config.vocab_size = gpt2.vocab_size();
  config.hidden_size = gpt2.hidden_size();
  config.intermediate_size = gpt2.has_intermediate_size() ? gpt2.intermediate_size() : 4 * gpt2.hidden_size();
  config.layers = gpt2.layers();
  config.heads = gpt2.heads();
  config.positions = gpt2.positions();
  if (gpt2.has_norm_epsilon()) config.norm_epsilon = gpt2.norm_epsilon();
  config.tied_embeddings = !gpt2.untied_embeddings();
  return config;
}

UnitDescription ToDescription(const v1::Plugin::Unit& from) {
  UnitDescription unit;
  unit.name = from.name();
  for (const v1::Plugin::Param& param : from.params()) {
    unit.params.push_back({param.name(),
                           {param.shape().begin(), param.shape().end()},
                           param.has_decay() ? param.decay() : param.shape_size() > 1});
  }
  unit.borrows = from.tied_to();
  unit.saved_values = from.saved_values();
  unit.saved_values_selective = from.saved_values_selective();
  unit.workspace_values = from.workspace_values();
  unit.output_values = from.output_values();
  unit.flops_per_token = from.flops_per_token();
  return unit;
}

PluginConfig ToPlugin(const v1::Plugin& plugin) {
  PluginConfig config;
  config.path = plugin.path();
  config.args = plugin.args();
  config.vocab_size = plugin.vocab_size();
  config.max_sequence_length = plugin.max_sequence_length();
  for (const v1::Plugin::Unit& unit : plugin.units()) config.units.push_back(ToDescription(unit));
  return config;
}

PackageGraph ToGraph(const v1::Package::Graph& from) {
  PackageGraph graph;
  for (const v1::Package::Param& param : from.params())
    graph.params.push_back(
        {{param.name(), {param.shape().begin(), param.shape().end()}, param.decay()}, param.frozen()});
  graph.output_bytes = from.output_bytes();
  if (!from.has_head()) graph.output_type = ToDType(from.output_type());
  graph.forward_flops = from.forward_flops();
  graph.attention_flops = from.attention_flops();
  graph.forward_bytes = from.forward_bytes();
  graph.backward_bytes = from.backward_bytes();
  graph.backward_reads_params = from.backward_reads_params();
  graph.evaluation_workspace_bytes = from.evaluation_workspace_bytes();
  for (const v1::Package::Variant& variant : from.variants())
    graph.variants.push_back({ToRecompute(variant.recompute()), variant.saved_bytes(),
                              variant.workspace_bytes(), variant.recomputed_flops(),
                              variant.forward_seconds(), variant.backward_seconds()});
  if (!from.has_head()) return graph;
  graph.head.emplace();
  graph.head->weight = from.head().weight();
  if (from.head().has_bias()) graph.head->bias = from.head().bias();
  if (from.head().has_logit_scale()) graph.head->logit_scale = from.head().logit_scale();
  graph.head->soft_cap = from.head().soft_cap();
  return graph;
}

PackageConfig ToPackage(const v1::Package& package) {
  PackageConfig config;
  config.path = package.path();
  config.digest = package.digest();
  config.vocab_size = package.vocab_size();
  config.sequence_length = package.sequence_length();
  config.micro_batch = package.micro_batch_size();
  config.compute = ToDType(package.compute());
  config.device = package.device() == v1::DEVICE_CPU ? DeviceKind::kCpu : DeviceKind::kCuda;
  config.target = package.target();
  config.torch_version = package.torch_version();
  config.buffer_bytes = package.buffer_bytes();
  config.matmul_flops = package.matmul_flops();
  for (const v1::Package::Graph& graph : package.graphs()) config.graphs.push_back(ToGraph(graph));
  for (const v1::Package::Unit& unit : package.units())
    config.units.push_back({unit.name(), unit.graph(), unit.module(), unit.tied_to()});
  return config;
}

}  // namespace

const char* NameOf(Strategy strategy) {
  constexpr const char* kNames[] = {"no_shard", "optim", "optim_grads", "optim_grads_params"};
  return kNames[static_cast<size_t>(strategy)];
}

int64_t VocabSize(const ModelConfig& model) {
  return std::visit([](const auto& config) { return config.vocab_size; }, model);
}

int64_t MaxSequenceLength(const ModelConfig& model) {
  if (const auto* gpt2 = std::get_if<Gpt2Config>(&model)) return gpt2->positions;
  if (const auto* llama = std::get_if<LlamaConfig>(&model)) return llama->positions;
  if (const auto* plugin = std::get_if<PluginConfig>(&model)) return plugin->max_sequence_length;
  return std::get<PackageConfig>(model).sequence_length;
}

size_t PackageGraph::VariantFor(Recompute recompute) const {
  size_t chosen = 0;
  for (size_t v = 0; v < variants.size(); ++v) {
    const bool is_allowed = variants[v].recompute <= recompute;
    const bool saves_less = variants[v].recompute > variants[chosen].recompute;
    if (is_allowed && (saves_less || variants[chosen].recompute > recompute)) chosen = v;
  }
  return chosen;
}

namespace {

double YarnScale(const RopeScaling& scaling, double mscale) {
  return scaling.yarn ? 1 + 0.1 * mscale * std::log(scaling.factor) : 1;
}

bool HasSharedExperts(const ExpertsConfig& experts) {
  return experts.shared_intermediate_size > 0 &&
         experts.shared_intermediate_size % experts.intermediate_size == 0;
}

bool LeavesGroupsOut(const ExpertsConfig& experts) { return experts.groups_per_token < experts.groups; }

// Routing options of DeepSeek-V3 and dots1.
bool IsDeepSeekV3Routing(const ExpertsConfig& experts) {
  return experts.sigmoid && experts.selection_bias && HasSharedExperts(experts) &&
         !(LeavesGroupsOut(experts) && experts.groups_by_best);
}

bool IsDeepSeekV2Routing(const ExpertsConfig& experts) {
  return !experts.sigmoid && !experts.selection_bias && !experts.normalized && HasSharedExperts(experts) &&
         (!LeavesGroupsOut(experts) || experts.groups_by_best);
}

std::string DeepSeekType(const ExpertsConfig& experts) {
  if (experts.count == 0 || IsDeepSeekV3Routing(experts)) return "deepseek_v3";
  return IsDeepSeekV2Routing(experts) ? "deepseek_v2" : "";
}

}  // namespace

double RopeScaling::RotatedScale() const {
  return YarnScale(*this, mscale) / YarnScale(*this, mscale_all_dim);
}

double RopeScaling::ScoreScale() const {
  const double scale = YarnScale(*this, mscale_all_dim);
  return scale * scale;
}

std::string TransformersType(const LlamaConfig& model) {
  if (model.latent) {
    const std::string type = DeepSeekType(model.experts);
    return type == "deepseek_v2" && !model.latent.interleaved ? "" : type;
  }
  if (model.experts.count == 0) {
    if (model.qk_norm && model.attention_bias) return "";
    return model.qk_norm ? "qwen3" : model.attention_bias ? "qwen2" : "llama";
  }
  if (model.attention_bias) return "";
  const ExpertsConfig& experts = model.experts;
  if (IsDeepSeekV3Routing(experts) && model.qk_norm) return "dots1";
  const bool plain = !experts.sigmoid && !experts.selection_bias && experts.groups == 1 &&
                     experts.weight_scale == 1 && experts.shared_intermediate_size == 0;
  if (!plain) return "";
  if (model.qk_norm) return "qwen3_moe";
  return model.experts.normalized && model.experts.dense_layers == 0 ? "mixtral" : "";
}

int64_t ExpertLayers(const ModelConfig& model) {
  const auto* llama = std::get_if<LlamaConfig>(&model);
  return llama == nullptr ? 0 : llama->expert_layers();
}

LoraConfig ToLoraConfig(const v1::Lora& lora) {
  LoraConfig config;
  config.rank = lora.rank();
  config.alpha = lora.alpha();
  config.rank_stabilized = lora.rank_stabilized();
  config.targets.assign(lora.targets().begin(), lora.targets().end());
  config.base_model = lora.base_model();
  config.nf4 = lora.base_type() == v1::BASE_TYPE_NF4;
  return config;
}

ModelConfig ToModelConfig(const v1::Model& model) {
  if (model.has_gpt2()) return ToGpt2(model.gpt2());
  if (model.has_llama()) return ToLlama(model.llama());
  if (model.has_plugin()) return ToPlugin(model.plugin());
  if (model.has_package()) return ToPackage(model.package());
  const ModelConfig* preset = FindPreset(model.preset());
  FSDPD_CHECK(preset != nullptr);
  return *preset;
}

int64_t ExpertsOf(const v1::Model& model) {
  if (model.has_llama()) return model.llama().experts().count();
  const ModelConfig* preset = FindPreset(model.preset());
  const auto* llama = preset == nullptr ? nullptr : std::get_if<LlamaConfig>(preset);
  return llama == nullptr ? 0 : llama->experts.count;
}

v1::Plugin ToProto(const ModelDescription& model) {
  v1::Plugin plugin;
  plugin.set_vocab_size(model.vocab_size);
  plugin.set_max_sequence_length(model.max_sequence_length);
  for (const UnitDescription& from : model.units) {
    v1::Plugin::Unit* unit = plugin.add_units();
    unit->set_name(from.name);
    for (const ParamDescription& param : from.params) {
      v1::Plugin::Param* to = unit->add_params();
      to->set_name(param.name);
      to->mutable_shape()->Assign(param.shape.begin(), param.shape.end());
      to->set_decay(param.decay);
    }
    unit->set_tied_to(from.borrows);
    unit->set_saved_values(from.saved_values);
    unit->set_saved_values_selective(from.saved_values_selective);
    unit->set_workspace_values(from.workspace_values);
    unit->set_output_values(from.output_values);
    unit->set_flops_per_token(from.flops_per_token);
  }
  return plugin;
}

bool Spec::SavesAfter(int64_t step) const {
  if (!checkpoint.saves()) return false;
  if (checkpoint.on_end && step == steps) return true;
  return checkpoint.every_steps > 0 && step % checkpoint.every_steps == 0;
}

Spec ToSpec(const v1::JobSpec& resolved) {
  Spec spec;
  spec.name = resolved.name();
  spec.model = ToModelConfig(resolved.model());
  spec.data = ToData(resolved.data());
  const v1::Train& train = resolved.train();
  spec.steps = train.steps();
  spec.micro_batch = train.micro_batch();
  spec.global_batch = train.global_batch();
  spec.seed = static_cast<uint64_t>(train.seed());
  spec.initial = ToInitial(train.initial());
  spec.evaluation = {train.evaluation().every_steps(), train.evaluation().samples()};
  spec.on_nonfinite = {ToAction(train.on_nonfinite().action()), train.on_nonfinite().max()};
  if (train.has_on_spike()) spec.on_spike = ToOnSpike(train.on_spike());
  spec.frozen.assign(train.frozen().begin(), train.frozen().end());
  if (train.has_lora()) spec.lora = ToLoraConfig(train.lora());
  if (train.has_graphs()) spec.graphs = train.graphs();
  if (resolved.resources().device() == v1::DEVICE_CPU) spec.graphs = false;
  spec.deterministic = train.deterministic();
  spec.optimizer = ToOptimizer(resolved.optimizer());
  spec.schedule = ToSchedule(resolved.schedule());
  const v1::Precision& precision = resolved.precision();
  spec.precision = {ToDType(precision.compute()), ToDType(precision.main_grads()),
                    ToDType(precision.grad_comm()),
                    precision.moments() == v1::DTYPE_FP8 ? DType::kFp8 : ToDType(precision.moments())};
  spec.precision.fp8 = precision.compute() == v1::DTYPE_FP8;
  spec.precision.keep_bf16.assign(precision.fp8().keep_bf16().begin(), precision.fp8().keep_bf16().end());
  spec.loss_scale = {precision.loss_scale().initial(), precision.loss_scale().growth_interval()};
  const v1::Fsdp& fsdp = resolved.fsdp();
  spec.strategy = ToStrategy(fsdp.strategy());
  spec.prefetch_bytes = fsdp.prefetch_bytes();
  spec.keep_gathered = fsdp.keep_gathered();
  spec.offload_optimizer = fsdp.offload().optimizer();
  spec.offloaded_layers = fsdp.offload().activation_layers();
  spec.recompute = ToRecompute(fsdp.recompute());
  spec.recompute_layers = fsdp.recompute_layers();
  spec.outer_strategy = ToStrategy(fsdp.outer().strategy());
  spec.checkpoint = ToCheckpoint(resolved.checkpoint());
  const v1::Resources& resources = resolved.resources();
  spec.device = resources.device() == v1::DEVICE_CPU ? DeviceKind::kCpu : DeviceKind::kCuda;
  const int64_t world = resources.nodes() * resources.ranks_per_node();
  FSDPD_CHECK(world > 0);
  spec.mesh = Mesh::DataParallel(1, world)
                  .WithPipeline(resolved.parallel().pipeline())
                  .WithReplicas(fsdp.outer().size())
                  .WithExpert(resolved.parallel().expert())
                  .WithContext(resolved.parallel().context())
                  .WithTensor(resolved.parallel().tensor());
  spec.stage_units.assign(resolved.parallel().stage_units().begin(), resolved.parallel().stage_units().end());
  spec.zero_bubble = resolved.parallel().pipeline() > 1 &&
                     resolved.parallel().pipeline_schedule() == v1::PIPELINE_SCHEDULE_ZERO_BUBBLE;
  spec.memory_budget_bytes = resources.memory_budget_bytes();
  FSDPD_CHECK(spec.micro_batch > 0 && spec.micro_batches_per_step() > 0);
  return spec;
}

}  // namespace fsdpd
