// A hundred job specs and what their programs were when the engine knew two mesh axes and one compute type:
// the hash of each in the rendering of that time, taken before meshes and types became data. The rendering
// is kept here in full, so that a change of names and structures shows as equal and a change of programs does
// not. A program that is meant to change changes its hash here, in the same commit and with the reason.
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "fsdp/plan/plan.h"
#include "fsdp/plan/program/fingerprint.h"

namespace fsdpd {
namespace {

constexpr int kSpecs = 100;

constexpr uint64_t kHashes[] = {
    0x3177532d20060854, 0xfce77e7bb4ecf7a3, 0xd33f63e88d310e22, 0x6d996488849d52a2, 0x83ce570301bbd4b1,
    0x8366861a2c537594, 0x3ad8fb0fab57d96f, 0x3375797e0c9769f6, 0x830f207fef236a26, 0xd95ff2703c1a7595,
    0xf8e72c90c82334f1, 0x2267fdc191d19732, 0x018fd76f2c66f523, 0x2955a4c61ea399ea, 0x7cbada302d3fc34c,
    0x9baa8af19aa2fe79, 0x9546db48574d584b, 0xdf7e36cb610e7c23, 0xe770dd22f3b4bc5d, 0xb4ccc6d81209d3b2,
    0xe1d571fce1192c48, 0x36a94dfa44fed127, 0xfeacb3191783d9a7, 0x401e88353ca492b0, 0x44425edb324196e6,
    0xea1b45be52d3a687, 0x81cf1374e2709050, 0xde07a4d1627c1116, 0xc90fdf8ab29e6b32, 0x5ee4f2ed7846b3aa,
    0x54c15ee2c3ce8497, 0xd18faa8d609892b4, 0xb5547c4558fc0b95, 0x17849d63d76da3d1, 0x7e8ff7296aa8501e,
    0x8e69a701b3084e5f, 0xec897617335fdf73, 0xe8b8210e6aab03bd, 0x60b897b83522b81b, 0x13120af3576c3f7f,
    0xf81f1aa07d43d267, 0x637afff070bceab5, 0x25f6979779b7b06c, 0xa37a6ed18ff13e82, 0xfbd16f5d0ca5b44d,
    0x36aaba1adad5ea82, 0xdb38bb6503138dc7, 0xdfd6cf6f29f48485, 0xc8afa31eab4ddfa4, 0xddc57adf0a73d7e4,
    0xfe5c1017a75d9062, 0xd14872ec1575620f, 0x9f25150e18e29011, 0xf2d4a61a78358251, 0x3f3fa0de4d31413e,
    0x9308af483e421f57, 0xa18c5312fd122c3c, 0x0953046c5c53a72e, 0x3119e5b24ef8e5d6, 0x795653394aa9e3a5,
    0x02eaa2249ca25386, 0xb6c46bed3ca21ccc, 0xc09c712fc9422f90, 0x400219b4465daf2b, 0x8ba3e3d906c92624,
    0x4e7d66733deebced, 0xea3874a9fa6336ee, 0x3c8fcf80d7ee32e0, 0x8205801281200ae1, 0x5f41c74f06dfbc09,
    0x0f3cd5fc56224f06, 0xc19b367911283bbe, 0x46ce92d4be37d05c, 0x989f05d46176daa6, 0x113ec68d2f51c3fd,
    0x1ddf7f79066a63bd, 0x16441592d24daded, 0xc3e22d1c251e3961, 0xccf41231d3b685f0, 0xefa812080f150bd1,
    0xb4bc30cca905eee2, 0x105814363410922a, 0xbfb48835712c71e7, 0x5b362fa85ca5cf7f, 0x6c0ddcc099fb46a5,
    0xb74250a37775d81d, 0xec6866f3d76df78c, 0x42e237d4e106531a, 0x6bef580c9a4afb64, 0x4d452d015801bed4,
    0x3e9b42fcffd5e6ce, 0x3fa0ae941c1cf9af, 0x9a7cd96ee869d7f9, 0xf45547f1703bf52f, 0x2a8b5fdb53f65e3a,
    0x488d76641f8fa705, 0xbcb370d0b8bf9ad7, 0xda48c51e127e7ec4, 0xf31582e3bd499595, 0x467c9c1a8b00ee7f,
};

// ---- The rendering.

using Lines = std::vector<std::string>;

// Seventeen digits bring every double back, so two that differ read differently.
std::string Exact(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.17g", value);
  return text;
}

// "spec.global_batch = 64", under one prefix.
class Section {
 public:
  Section(std::string prefix, Lines* lines) : prefix_(std::move(prefix)), lines_(lines) {}

  void Text(const char* name, absl::string_view value) const {
    lines_->push_back(absl::StrCat(prefix_, ".", name, " = ", value));
  }
  void Int(const char* name, int64_t value) const { Text(name, absl::StrCat(value)); }
  void Real(const char* name, double value) const { Text(name, Exact(value)); }

 private:
  std::string prefix_;
  Lines* lines_;
};

const char* NameOf(Recompute recompute) {
  switch (recompute) {
    case Recompute::kNone:
      return "none";
    case Recompute::kSelective:
      return "selective";
    case Recompute::kFull:
      return "full";
  }
  return "?";
}

const char* NameOf(ScheduleShape shape) {
  switch (shape) {
    case ScheduleShape::kConstant:
      return "constant";
    case ScheduleShape::kCosine:
      return "cosine";
    case ScheduleShape::kLinear:
      return "linear";
    case ScheduleShape::kWsd:
      return "wsd";
  }
  return "?";
}

const char* NameOf(TokenType type) {
  switch (type) {
    case TokenType::kU8:
      return "u8";
    case TokenType::kU16:
      return "u16";
    case TokenType::kU32:
      return "u32";
    case TokenType::kMegatron:
      return "megatron";
  }
  return "?";
}

void Add(const LlamaConfig& llama, Lines* lines) {
  const Section to("model.llama", lines);
  to.Int("vocab_size", llama.vocab_size);
  to.Int("hidden_size", llama.hidden_size);
  to.Int("intermediate_size", llama.intermediate_size);
  to.Int("layers", llama.layers);
  to.Int("heads", llama.heads);
  to.Int("kv_heads", llama.kv_heads);
  to.Int("head_size", llama.head_size);
  to.Real("rope_theta", llama.rope_theta);
  to.Real("norm_epsilon", llama.norm_epsilon);
  to.Int("tied_embeddings", llama.tied_embeddings);
  to.Int("qk_norm", llama.qk_norm);
  to.Int("attention_bias", llama.attention_bias);
  to.Real("rope_scaling.factor", llama.rope_scaling.factor);
  to.Real("rope_scaling.low_freq_factor", llama.rope_scaling.low_freq_factor);
  to.Real("rope_scaling.high_freq_factor", llama.rope_scaling.high_freq_factor);
  to.Int("rope_scaling.original_positions", llama.rope_scaling.original_positions);
}

void Add(const Gpt2Config& gpt2, Lines* lines) {
  const Section to("model.gpt2", lines);
  to.Int("vocab_size", gpt2.vocab_size);
  to.Int("hidden_size", gpt2.hidden_size);
  to.Int("intermediate_size", gpt2.intermediate_size);
  to.Int("layers", gpt2.layers);
  to.Int("heads", gpt2.heads);
  to.Int("positions", gpt2.positions);
  to.Real("norm_epsilon", gpt2.norm_epsilon);
  to.Int("tied_embeddings", gpt2.tied_embeddings);
}

// Parameters are in the layout.
void Add(const PluginConfig& plugin, Lines* lines) {
  const Section to("model.plugin", lines);
  to.Text("path", plugin.path);
  to.Text("args", plugin.args);
  to.Int("vocab_size", plugin.vocab_size);
  to.Int("max_sequence_length", plugin.max_sequence_length);
}

void AddSources(const std::string& name, const std::vector<TokenSource>& sources, Lines* lines) {
  for (size_t i = 0; i < sources.size(); ++i) {
    lines->push_back(absl::StrCat("data.", name, "[", i, "] = ", NameOf(sources[i].type), " weight ",
                                  Exact(sources[i].weight)));
  }
}

void Add(const DataConfig& data, const EvaluationConfig& evaluation, Lines* lines) {
  const Section to("data", lines);
  AddSources("tokens", data.tokens, lines);
  AddSources("validation", data.validation, lines);
  to.Int("synthetic_vocab", data.synthetic_vocab);
  to.Int("sequence_length", data.sequence_length);
  to.Text("ignored_token", data.ignored_token ? absl::StrCat(*data.ignored_token) : "none");
  to.Int("evaluation.every_steps", evaluation.every_steps);
  to.Int("evaluation.samples", evaluation.samples);
}

void Add(const OptimizerConfig& optimizer, Lines* lines) {
  const Section to("optimizer", lines);
  to.Text("kind", optimizer.kind == OptimizerKind::kAdamW ? "adamw" : "sgd");
  to.Real("lr", optimizer.lr);
  to.Real("weight_decay", optimizer.weight_decay);
  to.Real("beta1", optimizer.beta1);
  to.Real("beta2", optimizer.beta2);
  to.Real("eps", optimizer.eps);
  to.Real("momentum", optimizer.momentum);
  to.Int("nesterov", optimizer.nesterov);
  to.Real("clip_norm", optimizer.clip_norm);
}

void Add(const ScheduleConfig& schedule, Lines* lines) {
  const Section to("schedule", lines);
  to.Text("shape", NameOf(schedule.shape));
  to.Int("warmup_steps", schedule.warmup_steps);
  to.Int("decay_steps", schedule.decay_steps);
  to.Real("min_lr_ratio", schedule.min_lr_ratio);
}

// Frozen patterns and parameter groups are in the layout as what they became.
void Add(const Spec& spec, Lines* lines) {
  const Section to("spec", lines);
  to.Int("steps", spec.steps);
  to.Int("micro_batch", spec.micro_batch);
  to.Int("global_batch", spec.global_batch);
  to.Text("seed", absl::StrCat(spec.seed));
  to.Text("compute", NameOf(spec.precision.compute));
  to.Text("main_grads", NameOf(spec.precision.main_grads));
  to.Text("grad_comm", NameOf(spec.precision.grad_comm));
  to.Text("moments", NameOf(spec.precision.moments));
  to.Real("loss_scale.initial", spec.loss_scale.initial);
  to.Int("loss_scale.growth_interval", spec.loss_scale.growth_interval);
  to.Text("strategy", NameOf(spec.strategy));
  to.Int("prefetch_bytes", spec.prefetch_bytes);
  to.Int("keep_gathered", spec.keep_gathered);
  to.Text("recompute", NameOf(spec.recompute));
  to.Int("recompute_layers", spec.recompute_layers);
  to.Text("device", spec.device == DeviceKind::kCpu ? "cpu" : "cuda");
  to.Int("world", spec.mesh.world());
  to.Int("outer_size", spec.mesh.size(Axis::kReplicate));
  to.Text("outer_strategy", NameOf(spec.outer_strategy));
  std::visit([lines](const auto& model) { Add(model, lines); }, spec.model);
  Add(spec.data, spec.evaluation, lines);
  Add(spec.optimizer, lines);
  Add(spec.schedule, lines);
}

void Add(const Layout& layout, Lines* lines) {
  lines->push_back(absl::StrCat("layout: ", layout.units.size(), " units, ", layout.buckets.size(),
                                " buckets, ", layout.buckets[0].shards, " shards of ",
                                layout.buckets[0].pieces));
  for (const UnitLayout& unit : layout.units) {
    std::string line = absl::StrCat("unit ", unit.name, ": buckets ", absl::StrJoin(unit.buckets, " "));
    if (unit.borrows >= 0) absl::StrAppend(&line, ", borrows ", layout.units[unit.borrows].name);
    lines->push_back(std::move(line));
  }
  for (size_t b = 0; b < layout.buckets.size(); ++b) {
    const Bucket& bucket = layout.buckets[b];
    lines->push_back(absl::StrCat("bucket ", b, " ", layout.units[bucket.unit].name,
                                  bucket.trainable ? " trainable: " : " frozen: ", bucket.bucket_elements,
                                  " elements, shard ", bucket.shard_elements, ", main ",
                                  bucket.main_elements));
    for (const ParamSlot& param : bucket.params) {
      lines->push_back(absl::StrCat("  ", param.name, " [", absl::StrJoin(param.shape, ", "), "] at ",
                                    param.offset, ", weight_decay ", Exact(param.weight_decay), ", lr_scale ",
                                    Exact(param.lr_scale)));
    }
  }
}

// Buffers by number: their own lines say which they are.
std::string LineOf(const Program& program, const Layout& layout, int index) {
  const Instruction& at = program.instructions[index];
  std::string line = absl::StrCat("#", index, " ", NameOf(at.op));
  if (at.unit >= 0) absl::StrAppend(&line, " ", layout.units[at.unit].name);
  if (at.bucket >= 0) absl::StrAppend(&line, " bucket ", at.bucket);
  if (at.micro_batch >= 0) absl::StrAppend(&line, " mb ", at.micro_batch);
  absl::StrAppend(&line, " on ", NameOf(at.lane));
  if (at.accumulate) line += ", adds";
  if (at.recompute != Recompute::kNone) absl::StrAppend(&line, ", recomputes ", NameOf(at.recompute));
  if (!at.after.empty()) absl::StrAppend(&line, ", after #", absl::StrJoin(at.after, " #"));
  if (!at.after_previous.empty()) {
    absl::StrAppend(&line, ", after the last step's #", absl::StrJoin(at.after_previous, " #"));
  }
  for (const BufferUse& use : at.uses) {
    absl::StrAppend(&line, use.access == Access::kRead ? ", reads " : ", writes ", use.buffer);
  }
  return line;
}

void Add(const Program& program, const Layout& layout, Lines* lines) {
  lines->push_back(absl::StrCat(program.kind == ProgramKind::kTraining ? "training" : "evaluation",
                                " program: ", program.instructions.size(), " instructions, ",
                                program.buffers.size(), " buffers, arena of ", program.arena_bytes,
                                " bytes"));
  for (size_t b = 0; b < program.buffers.size(); ++b) {
    const Buffer& buffer = program.buffers[b];
    std::string line = absl::StrCat("buffer ", b, " ", NameOf(buffer.kind), " of bucket ", buffer.bucket,
                                    ": ", buffer.bytes, " bytes at ", buffer.offset, ", live");
    for (const Buffer::Interval& live : buffer.live) absl::StrAppend(&line, " #", live.born, "-#", live.dies);
    lines->push_back(std::move(line));
  }
  for (size_t i = 0; i < program.instructions.size(); ++i) {
    lines->push_back(LineOf(program, layout, static_cast<int>(i)));
  }
}

uint64_t OldHash(const Plan& plan) {
  Lines lines;
  Add(plan.spec, &lines);
  Add(plan.layout, &lines);
  Add(plan.program, plan.layout, &lines);
  if (plan.spec.evaluation.every_steps > 0) Add(plan.evaluation, plan.layout, &lines);
  lines.push_back(absl::StrCat("memory = ", plan.memory.peak_bytes));
  return HashOf(lines);
}

// ---- The specs: every setting that shapes a program, drawn.

// The next of so many values, from a generator that is the same everywhere.
class Turns {
 public:
  explicit Turns(int number) : state_(static_cast<uint64_t>(number)) {}

  int Next(int values) {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<int>((state_ >> 33) % static_cast<uint64_t>(values));
  }
  template <typename T>
  T Of(std::initializer_list<T> values) {
    return *(values.begin() + Next(static_cast<int>(values.size())));
  }

 private:
  uint64_t state_;
};

void SetModel(Turns* turns, v1::Model* model) {
  if (turns->Next(4) == 1) {
    v1::Gpt2* gpt2 = model->mutable_gpt2();
    gpt2->set_vocab_size(turns->Of({64, 101}));
    gpt2->set_hidden_size(48);
    gpt2->set_layers(turns->Of({1, 3}));
    gpt2->set_heads(4);
    gpt2->set_positions(64);
    return;
  }
  v1::Llama* llama = model->mutable_llama();
  llama->set_vocab_size(turns->Of({64, 251}));
  llama->set_hidden_size(turns->Of({32, 64}));
  llama->set_intermediate_size(turns->Of({40, 128}));
  llama->set_layers(turns->Of({2, 3, 7}));
  llama->set_heads(4);
  llama->set_kv_heads(turns->Of({1, 2, 4}));
  llama->set_tied_embeddings(turns->Next(3) == 1);
  llama->set_qk_norm(turns->Next(3) == 1);
  llama->set_attention_bias(turns->Next(4) == 1);
}

void SetTraining(Turns* turns, int64_t ranks, v1::JobSpec* job) {
  v1::Train* train = job->mutable_train();
  train->set_steps(turns->Of({3, 20}));
  train->set_micro_batch(turns->Of({1, 2}));
  train->set_global_batch(train->micro_batch() * ranks * turns->Of({1, 2, 3}));
  if (turns->Next(5) == 1) train->add_frozen(turns->Of({"embedding.*", "layer.0.*", "*norm*"}));
  if (turns->Next(3) == 1) train->mutable_evaluation()->set_every_steps(2);
  if (turns->Next(4) == 1) {
    job->mutable_optimizer()->mutable_sgd()->set_lr(0.1);
    job->mutable_optimizer()->mutable_sgd()->set_momentum(turns->Of({0.0, 0.9}));
  }
  if (turns->Next(2) == 1) job->mutable_optimizer()->set_clip_norm(1.0);
}

void SetSharding(Turns* turns, v1::JobSpec* job) {
  v1::Fsdp* fsdp = job->mutable_fsdp();
  fsdp->set_keep_gathered(fsdp->strategy() == v1::STRATEGY_OPTIM_GRADS_PARAMS && turns->Next(4) == 1);
  fsdp->set_recompute(turns->Of(
      {v1::RECOMPUTE_UNSPECIFIED, v1::RECOMPUTE_NONE, v1::RECOMPUTE_FULL, v1::RECOMPUTE_SELECTIVE}));
  if (turns->Next(3) == 1) fsdp->set_recompute_layers(turns->Of({1, 2}));
  if (turns->Next(3) == 1) fsdp->set_prefetch_bytes(turns->Of({0, 4096, 1 << 20}));
}

void SetPrecision(Turns* turns, v1::Precision* precision) {
  precision->set_compute(turns->Of({v1::DTYPE_FP32, v1::DTYPE_BF16, v1::DTYPE_BF16, v1::DTYPE_FP16}));
  if (turns->Next(3) == 1) precision->set_main_grads(turns->Of({v1::DTYPE_FP32, v1::DTYPE_BF16}));
  if (turns->Next(2) == 1) precision->set_grad_comm(turns->Of({v1::DTYPE_FP32, v1::DTYPE_BF16}));
  if (turns->Next(4) == 1) precision->set_moments(v1::DTYPE_BF16);
}

v1::JobSpec Job(int number) {
  Turns turns(number);
  v1::JobSpec job;
  job.set_name("fixture");
  job.mutable_fsdp()->set_strategy(
      turns.Of({v1::STRATEGY_OPTIM_GRADS_PARAMS, v1::STRATEGY_NO_SHARD, v1::STRATEGY_OPTIM,
                v1::STRATEGY_OPTIM_GRADS, v1::STRATEGY_OPTIM_GRADS_PARAMS}));
  SetModel(&turns, job.mutable_model());
  job.mutable_data()->mutable_synthetic();
  job.mutable_data()->set_sequence_length(turns.Of({8, 16}));
  const int64_t nodes = turns.Of({1, 2}), ranks = turns.Of({1, 2, 3, 4});
  job.mutable_resources()->set_nodes(nodes);
  job.mutable_resources()->set_ranks_per_node(ranks);
  job.mutable_resources()->set_device(turns.Of({v1::DEVICE_CPU, v1::DEVICE_CUDA}));
  if (nodes * ranks % 2 == 0 && turns.Next(3) == 1) {
    job.mutable_fsdp()->mutable_outer()->set_size(2);
    job.mutable_fsdp()->mutable_outer()->set_strategy(turns.Of({v1::STRATEGY_NO_SHARD, v1::STRATEGY_OPTIM}));
  }
  SetTraining(&turns, nodes * ranks, &job);
  SetSharding(&turns, &job);
  SetPrecision(&turns, job.mutable_precision());
  return job;
}

// The first hundred that the rules accept.
TEST(FingerprintFixture, ProgramsAreWhatTheyWere) {
  int accepted = 0;
  for (int number = 0; accepted < kSpecs; ++number) {
    ASSERT_LT(number, 50 * kSpecs) << "hardly any spec is accepted";
    const v1::JobSpec job = Job(number);
    const Plan plan = MakePlan(job, /*budget_bytes_per_rank=*/0);
    if (!plan.accepted()) continue;
    const uint64_t hash = OldHash(plan);
    ASSERT_LT(accepted, static_cast<int>(std::size(kHashes)));
    EXPECT_EQ(hash, kHashes[accepted]) << "spec " << number << ":\n" << job.DebugString();
    ++accepted;
  }
}

}  // namespace
}  // namespace fsdpd
