#include "fsdp/plan/budget.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <absl/strings/str_join.h>

#include <algorithm>
#include <deque>
#include <iterator>
#include <map>
#include <numeric>
#include <optional>
#include <utility>

#include "base/limits.h"
#include "base/mutex.h"
#include "base/text.h"
#include "fsdp/plan/model/activation_policy.h"
#include "fsdp/plan/model/describe_model.h"
#include "fsdp/plan/model/stage_partition.h"
#include "fsdp/plan/predict/device_profile.h"
#include "fsdp/plan/predict/estimate.h"
#include "fsdp/plan/resolve.h"
#include "fsdp/plan/rules/rules.h"
#include "fsdp/plan/spec/defaults.h"
#include "fsdp/plan/spec/field_path.h"

namespace fsdpd {
namespace {

// A modified job, and the change as the user would write it in the spec.
struct Option {
  v1::JobSpec job;
  std::string text;
  // Also sets train.global_batch; the text omits it, because ApplyChanges() appends the final value.
  bool sets_batch = false;
};

// Options of one kind of change, mildest first; empty if the kind does not apply.
using Options = std::vector<Option>;

// Error bound of the closed-form memory estimate, relative to the plan (search_test holds it to half of
// this).
constexpr double kFormIsWithin = 1.2;

constexpr int64_t kUsualDevices = 8;  // GPUs per node.

// If a fix needs more than this many times the ranks, alternatives are offered too.
constexpr int64_t kManyTimes = 2;

// Number of sufficient single changes to offer: the fastest ones, plus the fastest ones that reduce
// precision.
constexpr size_t kOffered = 3;
constexpr size_t kOfferedRounding = 1;

// Size of the advice cache.
constexpr size_t kRemembered = 64;

// The factors of the global batch.
struct Batch {
  int64_t micro = 1;
  int64_t global = 1;
  int64_t world = 1;
  int64_t sharing = 1;  // Ranks that work on the same sample.

  // Samples per micro-batch step over `ranks` ranks.
  int64_t Each(int64_t ranks) const { return micro * ranks / sharing; }
};

Batch BatchOf(const v1::JobSpec& job) {
  const v1::JobSpec filled = WithDefaults(job, nullptr);
  Batch batch{filled.train().micro_batch(), filled.train().global_batch(), RanksOf(filled),
              RanksPerSample(filled)};
  if (!filled.train().has_global_batch()) batch.global = batch.Each(batch.world);
  return batch;
}

v1::Strategy StrategyOf(const v1::JobSpec& job) { return WithDefaults(job, nullptr).fsdp().strategy(); }

// Reduces the number of micro-batches without changing peak memory: the third micro-batch repeats the second.
// With a pipeline, as many are in flight as there are stages (with several runs per stage, up to twice as
// many).
v1::JobSpec Shortened(v1::JobSpec job) {
  const Batch batch = BatchOf(job);
  const int64_t each = batch.Each(batch.world);
  job.mutable_train()->set_global_batch(
      std::min(batch.global / each, std::max<int64_t>(3, 2 * job.parallel().pipeline())) * each);
  return job;
}

// Whether the closed form already shows that an accepted job does not fit, even with full recompute.
bool IsFarOver(const v1::JobSpec& shortened) {
  // Offload may reduce it further.
  if (shortened.fsdp().memory() == v1::MEMORY_RECOMPUTE_OR_OFFLOAD) return false;
  v1::JobSpec least = shortened;
  if (least.fsdp().recompute() == v1::RECOMPUTE_UNSPECIFIED)
    least.mutable_fsdp()->set_recompute(v1::RECOMPUTE_FULL);
  const Spec spec = ToSpec(Resolve(least, 0, nullptr));
  const double enough = kFormIsWithin * static_cast<double>(spec.memory_budget_bytes);
  const std::vector<ModelFacts> stages = StagesOf(spec);
  return std::any_of(stages.begin(), stages.end(), [&](const ModelFacts& stage) {
    const Layout layout = MakeLayout(stage, LayoutOptionsOf(spec));
    return static_cast<double>(EstimateMemory(spec, stage, layout).peak_bytes) > enough;
  });
}

// Peak memory by job. Caches each result, because different changes can lead to the same job.
class Peaks {
 public:
  bool Fit(const v1::JobSpec& job) {
    const std::optional<int64_t> peak = Of(job);
    return peak.has_value() && *peak <= job.resources().memory_budget_bytes();
  }

  // Peak of the job when planned normally, with every `auto` resolved again; such an `auto` may use memory
  // that a change has freed. Empty if the rules reject the job or it is far over its budget.
  std::optional<int64_t> Of(const v1::JobSpec& job) {
    const auto [it, is_new] = known_.try_emplace(job.SerializeAsString());
    if (is_new) it->second = Find(job);
    return it->second;
  }

 private:
  static std::optional<int64_t> Find(const v1::JobSpec& job) {
    if (HasErrors(CheckJob(job))) return std::nullopt;
    const v1::JobSpec shortened = Shortened(job);
    if (IsFarOver(shortened)) return std::nullopt;
    const Spec spec = ToSpec(Resolve(shortened, 0, nullptr));
    int64_t most = 0;
    for (const ModelFacts& model : StagesOf(spec)) {
      const Layout layout = MakeLayout(model, LayoutOptionsOf(spec));
      most = std::max(most, PlanMemory(spec, model, layout, CompileProgram(spec, model, layout)).peak_bytes);
    }
    return most;
  }

  std::map<std::string, std::optional<int64_t>> known_;  // Key: the serialized job.
};

using Kind = Options (*)(const v1::JobSpec&, Peaks*);

// A default global batch follows micro_batch, so changing micro_batch would change the batch that the job
// trains on.
void KeepBatch(int64_t global, Option* option) {
  if (option->job.train().has_global_batch()) return;
  option->job.mutable_train()->set_global_batch(global);
  option->sets_batch = true;
}

// The job with one field changed.
Option With(const v1::JobSpec& job, const char* field, const std::string& value) {
  Option option{job, absl::StrCat(field, ": ", value)};
  SetField(&option.job, field, value);
  return option;
}

Options SmallerMicroBatch(const v1::JobSpec& job) {
  Options options;
  const Batch batch = BatchOf(job);
  for (int64_t size = batch.micro / 2; size >= 1; size /= 2) {
    if (batch.global % (size * batch.world / batch.sharing) != 0) continue;
    options.push_back(With(job, "train.micro_batch", absl::StrCat(size)));
    KeepBatch(batch.global, &options.back());
  }
  return options;
}

Option WithRecompute(const v1::JobSpec& job, v1::Recompute recompute, int64_t layers, bool all) {
  Option option = With(job, "fsdp.recompute", recompute == v1::RECOMPUTE_FULL ? "full" : "selective");
  if (all && !job.fsdp().has_recompute_layers()) return option;
  option.job.mutable_fsdp()->set_recompute_layers(layers);
  absl::StrAppend(&option.text, " with fsdp.recompute_layers: ", layers);
  return option;
}

// If recompute is `auto` on any number of layers, there is nothing left to change.
Options MoreRecompute(const v1::JobSpec& job) {
  v1::JobSpec open = Shortened(job);
  open.mutable_fsdp()->clear_recompute();
  open.mutable_fsdp()->clear_recompute_layers();
  const v1::JobSpec resolved = Resolve(open, 0, nullptr);
  const int64_t blocks = BlocksOf(DescribeSpec(ToSpec(resolved)));
  const v1::Fsdp& now = job.fsdp();
  const bool on_all = !now.has_recompute_layers() || now.recompute_layers() >= blocks;
  const bool at_most = now.recompute() == v1::RECOMPUTE_FULL || now.recompute() == v1::RECOMPUTE_UNSPECIFIED;
  if (on_all && at_most) return {};
  const Option everything = WithRecompute(job, v1::RECOMPUTE_FULL, blocks, /*all=*/true);
  const v1::Fsdp& chosen = resolved.fsdp();
  if (chosen.recompute() == v1::RECOMPUTE_NONE) return {everything};
  const bool all = chosen.recompute_layers() == blocks;
  return {WithRecompute(job, chosen.recompute(), chosen.recompute_layers(), all), everything};
}

// Offloads 1/4, 1/2, 3/4 and all of the layers.
Options OffloadActivations(const v1::JobSpec& job) {
  const Spec spec = ToSpec(Resolve(Shortened(job), 0, nullptr));
  if (spec.device == DeviceKind::kCpu || job.parallel().pipeline() > 1 || !WhyLayersStay(spec.model).empty())
    return {};
  const int64_t blocks = BlocksOf(DescribeSpec(spec));
  int64_t most = spec.offloaded_layers;
  Options options;
  for (int64_t quarter = 1; quarter <= 4; ++quarter) {
    const int64_t layers = (quarter * blocks + 3) / 4;
    if (layers <= most) continue;
    most = layers;
    options.push_back(With(job, "fsdp.offload.activation_layers", absl::StrCat(layers)));
  }
  return options;
}

Options GatherEachPass(const v1::JobSpec& job) {
  if (StrategyOf(job) != v1::STRATEGY_OPTIM_GRADS_PARAMS || !job.fsdp().keep_gathered()) return {};
  return {With(job, "fsdp.keep_gathered", "false")};
}

Options MoreSharding(const v1::JobSpec& job) {
  Options options;
  for (const auto& [strategy, name] :
       {std::pair(v1::STRATEGY_OPTIM, "optim"), std::pair(v1::STRATEGY_OPTIM_GRADS, "optim_grads"),
        std::pair(v1::STRATEGY_OPTIM_GRADS_PARAMS, "optim_grads_params")}) {
    if (strategy <= StrategyOf(job)) continue;
    options.push_back({InStrategy(job, strategy), absl::StrCat("fsdp.strategy: ", name)});
  }
  return options;
}

// First shards optimizer state over replicas (HFSDP), then removes the replicas.
Options FewerReplicas(const v1::JobSpec& job) {
  const v1::Fsdp::Outer& outer = job.fsdp().outer();
  if (outer.size() <= 1) return {};
  Options options;
  if (outer.strategy() != v1::STRATEGY_OPTIM && StrategyOf(job) == v1::STRATEGY_OPTIM_GRADS_PARAMS)
    options.push_back(With(job, "fsdp.outer.strategy", "optim"));
  options.push_back(With(job, "fsdp.outer.size", "1"));
  return options;
}

// Expert parallelism within a node, so that fewer experts are gathered at a time. The strongest option is
// used in combinations, so only degrees that the rules accept are listed.
Options ExpertsAmongRanks(const v1::JobSpec& job) {
  const v1::JobSpec filled = WithDefaults(job, nullptr);
  const int64_t count = ExpertsOf(job.model()), most = filled.resources().ranks_per_node();
  Options options;
  for (int64_t ranks = filled.parallel().expert() + 1; count > 0 && ranks <= most; ++ranks) {
    if (most % ranks != 0 || count % ranks != 0) continue;
    Option option = With(job, "parallel.expert", absl::StrCat(ranks));
    if (!HasErrors(CheckJob(option.job))) options.push_back(std::move(option));
  }
  return options;
}

// Context or tensor parallelism within a node. Lists only degrees that the rules accept.
Options RanksTogether(const v1::JobSpec& job, const char* axis, int64_t now) {
  const Batch batch = BatchOf(job);
  const int64_t most = WithDefaults(job, nullptr).resources().ranks_per_node();
  Options options;
  for (int64_t ranks = std::max<int64_t>(2 * now, 2); ranks <= most; ranks *= 2) {
    Option option = With(job, axis, absl::StrCat(ranks));
    KeepBatch(batch.global, &option);
    if (!HasErrors(CheckJob(option.job))) options.push_back(std::move(option));
  }
  return options;
}

Options MoreContext(const v1::JobSpec& job) {
  return RanksTogether(job, "parallel.context", job.parallel().context());
}

Options MoreTensor(const v1::JobSpec& job) {
  return RanksTogether(job, "parallel.tensor", job.parallel().tensor());
}

// Frozen matrices of a LoRA job in 4 bits. Listed only if the rules accept it, because later changes of a
// combination keep it.
Options NarrowBase(const v1::JobSpec& job) {
  if (!job.train().has_lora() || job.train().lora().base_type() == v1::BASE_TYPE_NF4) return {};
  Option option = With(job, "train.lora.base_type", "nf4");
  if (HasErrors(CheckJob(option.job))) return {};
  return {std::move(option)};
}

Options NarrowMoments(const v1::JobSpec& job) {
  const bool has_moments = !job.optimizer().has_sgd() || job.optimizer().sgd().momentum() > 0;
  const v1::DType now = job.precision().moments();
  if (!has_moments || now == v1::DTYPE_FP8) return {};
  Options options;
  for (const auto& [type, name] : {std::pair(v1::DTYPE_BF16, "bf16"), std::pair(v1::DTYPE_FP8, "fp8")}) {
    if (type == now || (type == v1::DTYPE_FP8 && !MomentsMayBeFp8(job.optimizer()))) continue;
    options.push_back(With(job, "precision.moments", name));
  }
  return options;
}

Options NarrowGradients(const v1::JobSpec& job) {
  if (WithDefaults(job, nullptr).precision().main_grads() == v1::DTYPE_BF16) return {};
  return {With(job, "precision.main_grads", "bf16")};
}

Options OffloadState(const v1::JobSpec& job) {
  if (job.resources().device() == v1::DEVICE_CPU) return {};  // Device memory is host memory.
  if (job.fsdp().offload().optimizer() ||
      (job.optimizer().has_sgd() && job.optimizer().sgd().momentum() == 0))
    return {};
  return {With(job, "fsdp.offload.optimizer", "true")};
}

// The job on `nodes` nodes. Keeps the global batch if it divides; otherwise increases it to the next one that
// does.
Option OnNodes(const v1::JobSpec& job, int64_t nodes) {
  const Batch batch = BatchOf(job);
  const v1::Resources now = WithDefaults(job, nullptr).resources();
  const int64_t world = nodes * now.ranks_per_node();
  const bool may_be_one = now.nodes() == 1 && world <= kUsualDevices;
  Option option{job, absl::StrCat("resources.nodes: ", nodes, " (", world, " ranks instead of ", batch.world,
                                  may_be_one ? ", on one node if it has enough" : "")};
  option.job.mutable_resources()->set_nodes(nodes);
  const int64_t each = batch.Each(world);
  const int64_t global = (batch.global + each - 1) / each * each;
  if (!job.train().has_global_batch()) {
    absl::StrAppend(&option.text, ", global batch ", global, " instead of ", batch.global, ")");
    return option;
  }
  option.text += ")";
  if (global == batch.global) return option;
  option.job.mutable_train()->set_global_batch(global);
  option.sets_batch = true;
  return option;
}

// The smallest multiple of `step` in (`fails`, `most`] that fits; 0 if none does. Memory decreases with more
// nodes except for padding, so the last steps are tried one by one.
int64_t FewestNodes(const v1::JobSpec& job, int64_t fails, int64_t step, int64_t most, Peaks* peaks) {
  const auto fits = [&](int64_t nodes) { return peaks->Fit(OnNodes(job, nodes).job); };
  int64_t enough = fails / step * step + step;
  while (enough <= most && !fits(enough)) {
    fails = enough;
    enough = enough == most / step * step ? most + 1 : std::min(2 * enough, most / step * step);
  }
  if (enough > most) return 0;
  while (enough - fails > step) {
    const int64_t middle = (fails + (enough - fails) / 2) / step * step;
    if (middle <= fails) break;
    (fits(middle) ? enough : fails) = middle;
  }
  return enough;
}

// The fewest nodes that keep the global batch; if there are none, the fewest nodes.
Options MoreRanks(const v1::JobSpec& job, Peaks* peaks) {
  if (StrategyOf(job) == v1::STRATEGY_NO_SHARD) return {};  // Nothing is sharded, so more ranks do not help.
  const v1::JobSpec filled = WithDefaults(job, nullptr);
  const int64_t nodes = filled.resources().nodes(), each = filled.resources().ranks_per_node();
  const Batch batch = BatchOf(job);
  const int64_t groups = filled.fsdp().outer().size() * batch.sharing;
  const int64_t step = groups / std::gcd(groups, each);
  const int64_t most = kMaxWorld / each;
  for (int64_t n = nodes / step * step + step; n <= most && batch.Each(n * each) <= batch.global; n += step) {
    if (batch.global % batch.Each(n * each) != 0) continue;
    if (Option option = OnNodes(job, n); peaks->Fit(option.job)) return {option};
  }
  const int64_t fewest = FewestNodes(job, nodes, step, most, peaks);
  if (fewest == 0) return {};
  return {OnNodes(job, fewest)};
}

// Kinds that depend only on the job.
template <Options (*kOptions)(const v1::JobSpec&)>
Options Of(const v1::JobSpec& job, Peaks*) {
  return kOptions(job);
}

// Changes that keep the number of ranks. kMeshKinds are offered only by themselves: combinations of mesh axes
// are left to the configuration search.
constexpr Kind kKinds[] = {Of<SmallerMicroBatch>, Of<MoreRecompute>, Of<OffloadActivations>,
                           Of<GatherEachPass>,    Of<MoreSharding>,  Of<FewerReplicas>,
                           Of<ExpertsAmongRanks>, Of<NarrowBase>,    Of<NarrowMoments>,
                           Of<NarrowGradients>,   Of<OffloadState>};
constexpr Kind kMeshKinds[] = {Of<MoreContext>, Of<MoreTensor>};

bool ChangesRounding(Kind kind) {
  return kind == Of<NarrowBase> || kind == Of<NarrowMoments> || kind == Of<NarrowGradients>;
}

// A kind of change; `milder` counts steps down from its strongest option.
struct Change {
  Kind kind;
  size_t milder = 0;
};

struct Fix {
  v1::JobSpec job;
  std::vector<std::string> texts;
  double step_seconds = 0;  // Predicted; 0 if it was not compared.
};

// Applies all changes, with the mildest option of the last one that fits. Empty if none fits, or if `milder`
// exceeds a change's options.
std::optional<Fix> ApplyChanges(const v1::JobSpec& job, const std::vector<Change>& changes, Peaks* peaks) {
  Fix fix{job, {}};
  int sets_batch = -1;  // Index of the last text that sets the global batch.
  for (size_t i = 0; i < changes.size(); ++i) {
    Options options = changes[i].kind(fix.job, peaks);
    if (changes[i].milder > 0 && changes[i].milder >= options.size()) return std::nullopt;
    if (options.empty()) continue;
    auto chosen = options.end() - 1 - static_cast<std::ptrdiff_t>(changes[i].milder);
    if (i + 1 == changes.size()) {
      chosen =
          std::find_if(options.begin(), options.end(), [&](const Option& o) { return peaks->Fit(o.job); });
      if (chosen == options.end()) return std::nullopt;
    }
    if (chosen->sets_batch) sets_batch = static_cast<int>(fix.texts.size());
    fix.job = std::move(chosen->job);
    fix.texts.push_back(std::move(chosen->text));
  }
  if (!peaks->Fit(fix.job)) return std::nullopt;
  if (sets_batch < 0) return fix;
  const int64_t before = BatchOf(job).global, after = fix.job.train().global_batch();
  absl::StrAppend(&fix.texts[sets_batch], " with train.global_batch: ", after,
                  after != before ? absl::StrCat(" instead of ", before) : "");
  return fix;
}

// Weakens or drops each change except the last, as long as the last need not grow.
Fix Minimize(const v1::JobSpec& job, std::vector<Change> changes, Fix fix, Peaks* peaks) {
  const auto take = [&](const std::vector<Change>& fewer) {
    std::optional<Fix> smaller = ApplyChanges(job, fewer, peaks);
    if (!smaller.has_value() || smaller->texts.back() != fix.texts.back()) return false;
    changes = fewer;
    fix = *std::move(smaller);
    return true;
  };
  for (size_t i = 0; i + 1 < changes.size();) {
    std::vector<Change> fewer = changes;
    fewer.erase(fewer.begin() + static_cast<std::ptrdiff_t>(i));
    if (!take(fewer)) ++i;
  }
  for (size_t i = 0; i + 1 < changes.size(); ++i) {
    for (bool taken = true; taken;) {
      std::vector<Change> fewer = changes;
      ++fewer[i].milder;
      taken = take(fewer);
    }
  }
  return fix;
}

// Closed-form step time with the shipped profile of the device kind.
double StepSecondsOf(const v1::JobSpec& job) {
  const v1::JobSpec resolved = Resolve(Shortened(job), 0, nullptr);
  Spec spec = ToSpec(resolved);
  spec.global_batch = BatchOf(job).global;
  const std::vector<ModelFacts> stages = StagesOf(spec);
  std::vector<Layout> layouts;
  for (const ModelFacts& stage : stages) layouts.push_back(MakeLayout(stage, LayoutOptionsOf(spec)));
  return EstimateStepSeconds(spec, stages, layouts, DefaultProfile(spec.device),
                             {resolved.resources().ranks_per_node()});
}

// Single changes that suffice with the given ranks: fastest first, changes that reduce precision last.
std::vector<Fix> SingleFixes(const v1::JobSpec& job, Peaks* peaks) {
  std::vector<Fix> fixes, rounding;
  const auto look = [&](Kind kind) {
    std::optional<Fix> fix = ApplyChanges(job, {{kind}}, peaks);
    if (!fix.has_value()) return;
    fix->step_seconds = StepSecondsOf(fix->job);
    (ChangesRounding(kind) ? rounding : fixes).push_back(*std::move(fix));
  };
  for (const Kind kind : kKinds) look(kind);
  for (const Kind kind : kMeshKinds) look(kind);
  const auto keep_fastest = [](size_t most, std::vector<Fix>* all) {
    std::stable_sort(all->begin(), all->end(),
                     [](const Fix& a, const Fix& b) { return a.step_seconds < b.step_seconds; });
    if (all->size() > most) all->resize(most);
  };
  keep_fastest(kOffered, &fixes);
  keep_fastest(kOfferedRounding, &rounding);
  std::move(rounding.begin(), rounding.end(), std::back_inserter(fixes));
  return fixes;
}

// Tries a single change on the given ranks; then accumulates changes; then adds ranks. Combines changes with
// more ranks if neither is enough, or if the number of ranks needed is very large.
std::vector<Fix> SmallestFixes(const v1::JobSpec& job, Peaks* peaks) {
  std::vector<Fix> fixes = SingleFixes(job, peaks);
  if (!fixes.empty()) return fixes;
  std::vector<Change> changes;
  for (const Kind kind : kKinds) {
    changes.push_back({kind});
    if (std::optional<Fix> fix = ApplyChanges(job, changes, peaks); fix.has_value()) {
      fixes.push_back(Minimize(job, changes, *std::move(fix), peaks));
      break;
    }
  }
  const bool has_enough = !fixes.empty();  // The given ranks are enough.
  int64_t alone = 0;                       // World size if only the number of ranks changes.
  if (std::optional<Fix> fix = ApplyChanges(job, {{MoreRanks}}, peaks); fix.has_value()) {
    alone = BatchOf(fix->job).world;
    fixes.push_back(*std::move(fix));
  }
  if (has_enough || (alone > 0 && alone <= kManyTimes * BatchOf(job).world)) return fixes;
  changes.push_back({MoreRanks});
  if (std::optional<Fix> fix = ApplyChanges(job, changes, peaks); fix.has_value()) {
    Fix least = Minimize(job, changes, *std::move(fix), peaks);
    if (alone == 0 || BatchOf(least.job).world < alone) fixes.insert(fixes.begin(), std::move(least));
  }
  return fixes;
}

std::string FindFix(const v1::JobSpec& job) {
  Peaks peaks;
  std::vector<std::string> alternatives;
  for (const Fix& fix : SmallestFixes(job, &peaks)) {
    alternatives.push_back(absl::StrCat(absl::StrJoin(fix.texts, " and "), ": the peak becomes ",
                                        HumanBytes(*peaks.Of(fix.job)), " per rank"));
    if (fix.step_seconds > 0)
      absl::StrAppend(&alternatives.back(), absl::StrFormat(", a step about %.3g s", fix.step_seconds));
  }
  if (alternatives.empty()) {
    return "no change of recompute, micro_batch, sharding, mesh, ranks or offload makes it fit; try `fsdpctl "
           "plan --search`, which changes several mesh axes together, or use a smaller model or "
           "sequence_length, or devices with more memory";
  }
  return absl::StrCat("use ", absl::StrJoin(alternatives, "; or "));
}

// Serializes and caches searches for a fix. Otherwise concurrent requests would use all of the coordinator's
// CPU; and a request for a plan followed by one for its violations, or several for the same job, need only
// one search.
class Adviser {
 public:
  std::string Advise(const v1::JobSpec& job) ABSL_LOCKS_EXCLUDED(mutex_) {
    const std::string key = job.SerializeAsString();
    MutexLock lock(&mutex_);
    const auto known =
        std::find_if(recent_.begin(), recent_.end(), [&](const auto& each) { return each.first == key; });
    if (known != recent_.end()) return known->second;
    recent_.emplace_front(key, FindFix(job));
    if (recent_.size() > kRemembered) recent_.pop_back();
    return recent_.front().second;
  }

 private:
  Mutex mutex_;
  // Key: the serialized job.
  std::deque<std::pair<std::string, std::string>> recent_ ABSL_GUARDED_BY(mutex_);
};

std::string Advice(const v1::JobSpec& job) {
  static auto* const adviser = new Adviser();
  return adviser->Advise(job);
}

}  // namespace

std::optional<Violation> OverBudget(const Spec& spec, const StepMemory& memory) {
  if (spec.memory_budget_bytes <= 0 || memory.peak_bytes <= spec.memory_budget_bytes) return std::nullopt;
  const MemoryComponent& largest =
      *std::max_element(memory.components.begin(), memory.components.end(),
                        [](const MemoryComponent& a, const MemoryComponent& b) { return a.bytes < b.bytes; });
  Violation fault;
  fault.rule = kMemoryOverBudget;
  fault.field = "resources.memory_budget_bytes";
  fault.reason = absl::StrCat(
      "a step needs ", HumanBytes(memory.peak_bytes), " per rank, over the budget of ",
      HumanBytes(spec.memory_budget_bytes), " by ", HumanBytes(memory.peak_bytes - spec.memory_budget_bytes),
      "; the largest component is ", largest.name, " (", HumanBytes(largest.bytes), ")");
  return fault;
}

Violations CheckBudget(const v1::JobSpec& job, const Spec& spec, const StepMemory& memory) {
  std::optional<Violation> fault = OverBudget(spec, memory);
  if (!fault.has_value()) return {};
  v1::JobSpec budgeted = job;
  budgeted.mutable_resources()->set_memory_budget_bytes(spec.memory_budget_bytes);
  fault->fix = Advice(budgeted);
  return {*std::move(fault)};
}

}  // namespace fsdpd
