#include "fsdp/plan/search/search.h"

#include <absl/strings/str_cat.h>

#include <algorithm>
#include <optional>
#include <tuple>
#include <utility>

#include "base/check_guard.h"
#include "base/limits.h"
#include "fsdp/plan/memory/memory.h"
#include "fsdp/plan/memory_strategies.h"
#include "fsdp/plan/model/activation_policy.h"
#include "fsdp/plan/model/stage_partition.h"
#include "fsdp/plan/plan.h"
#include "fsdp/plan/predict/estimate.h"
#include "fsdp/plan/prediction.h"
#include "fsdp/plan/resolve.h"
#include "fsdp/plan/rules/rules.h"
#include "fsdp/plan/search/candidates.h"

namespace fsdpd {
namespace {

// Slack for the error of the memory estimate: configurations over budget by less are planned exactly.
constexpr int64_t kEstimateSlackDivisor = 10;
// Maximum number of simulated configurations, including those that turn out not to fit.
constexpr int kMaxSimulated = 100;
// Minimum to simulate after time ran out with no result.
constexpr size_t kSimulatedLate = 3;

struct Ranked {
  Candidate candidate;
  double seconds = 0;      // Estimated.
  int64_t peak_bytes = 0;  // Estimated, with the chosen recompute.
};

// Closed-form estimate; `seconds` is meaningless if it does not fit.
struct Estimated {
  double seconds = 0;
  int64_t peak_bytes = 0;
  bool fits = true;
};

// Two configurations whose difference has no effect (e.g. sharding strategies on one rank) compile to the
// same program.
bool IsOneWay(const v1::PlanSearch::Configuration& a, const v1::PlanSearch::Configuration& b) {
  return a.micro_batches() == b.micro_batches() && a.memory().peak_bytes() == b.memory().peak_bytes() &&
         a.mesh().SerializeAsString() == b.mesh().SerializeAsString() &&
         a.prediction().SerializeAsString() == b.prediction().SerializeAsString();
}

class Search {
 public:
  Search(const v1::JobSpec& job, const DeviceProfile& profile, const SearchOptions& options)
      : job_(job),
        profile_(profile),
        options_(options),
        budget_bytes_(options.budget_bytes_per_rank > 0 ? options.budget_bytes_per_rank
                                                        : profile.budget_bytes()) {}

  Searched Run() {
    Violations written = CheckJob(job_);
    if (IsCountable()) {
      Describe();
      Visit();
    }
    if (searched_.search.allowed() == 0) {
      searched_.violations = HasErrors(written) ? std::move(written) : Violations{WhyNone()};
      return std::move(searched_);
    }
    for (const Violation& violation : written) {
      if (violation.level == ViolationLevel::kError)
        *searched_.search.add_as_written_violations() = ToProto(violation);
    }
    // First, because others are compared with it.
    if (!HasErrors(written) && Spent() <= 1) PlanAsWritten();
    SimulateBest();
    if (Spent() >= kCancelled || searched_.search.found_size() > 0) return std::move(searched_);
    if (!HasErrors(written) && !searched_.search.has_as_written()) PlanAsWritten();
    if (closest_.has_value()) {
      std::optional<v1::PlanSearch::Configuration> way =
          Planned(ApplyCandidate(job_, closest_->candidate), 0);
      if (way.has_value()) *searched_.search.mutable_closest() = *std::move(way);
    }
    return std::move(searched_);
  }

 private:
  // Otherwise there is nothing to divide, and a rule reports why.
  bool IsCountable() const {
    const v1::JobSpec filled = WithDefaults(job_, nullptr);
    const auto sound = [](int64_t value) { return value > 0 && value < int64_t{1} << 31; };
    return sound(filled.resources().nodes()) && sound(filled.resources().ranks_per_node()) &&
           RanksOf(filled) <= kMaxWorld && sound(filled.parallel().tensor()) &&
           sound(filled.parallel().context()) && sound(filled.parallel().pipeline()) &&
           filled.parallel().pipeline() <= kMaxWorld && sound(filled.train().micro_batch()) &&
           sound(GlobalBatchOf(job_)) && RanksPerSample(filled) <= RanksOf(filled);
  }

  double Spent() const { return options_.spent == nullptr ? 0 : options_.spent(); }

  void Visit() {
    v1::PlanSearch& search = searched_.search;
    search.set_complete(true);
    const auto is_over = [&] {
      if (Spent() <= kRankingFraction) return false;
      search.set_complete(false);
      return true;
    };
    const auto visit = [&](const v1::JobSpec& way) {
      if (search.tried() >= options_.tried) {
        search.set_complete(false);
        return fsdpd::Visit::kStop;
      }
      search.set_tried(search.tried() + 1);
      fsdpd::Visit next = fsdpd::Visit::kContinue;
      const absl::Status guarded = GuardChecks([&] { next = Rank(way); });
      if (!guarded.ok()) NoteBug(way, guarded);
      return next;
    };
    VisitCandidates(job_, options_.held, visit, is_over);
    search.set_fitting(static_cast<int64_t>(ranked_.size()));
    std::stable_sort(ranked_.begin(), ranked_.end(),
                     [](const Ranked& a, const Ranked& b) { return a.seconds < b.seconds; });
  }

  fsdpd::Visit Rank(const v1::JobSpec& way) {
    if (HasErrors(CheckJob(way))) return fsdpd::Visit::kContinue;
    const Estimated estimated = EstimateOf(way);
    searched_.search.set_allowed(searched_.search.allowed() + 1);
    if (estimated.fits) {
      ranked_.push_back({CandidateOf(way), estimated.seconds, estimated.peak_bytes});
      return fsdpd::Visit::kContinue;
    }
    if (!closest_.has_value() || estimated.peak_bytes < closest_->peak_bytes) {
      closest_ = Ranked{CandidateOf(way), 0, estimated.peak_bytes};
    }
    return fsdpd::Visit::kSkipLarger;
  }

  // Logs once: the same bug can affect thousands of configurations.
  void NoteBug(const v1::JobSpec& way, const absl::Status& why) {
    if (!bug_.has_value()) bug_ = CompilerBug(way, why);
  }

  // The reason why no configuration was found, for a spec that the rules accept as written.
  Violation WhyNone() const {
    if (bug_.has_value()) return *bug_;
    Violation none;
    none.rule = "search_found_none";
    none.field = "spec";
    const v1::PlanSearch& search = searched_.search;
    none.reason = search.tried() == 0 && !search.complete()
                      ? "the time limit ended before any configuration was tried"
                      : absl::StrCat("none of the ", search.tried(), " configurations ",
                                     search.complete() ? "is valid" : "tried within the time limit is valid");
    none.fix = search.complete() ? "hold fewer fields" : options_.fix_of_no_time;
    return none;
  }

  void PlanAsWritten() {
    std::optional<v1::PlanSearch::Configuration> way = Planned(job_, 0);
    if (way.has_value()) *searched_.search.mutable_as_written() = *std::move(way);
  }

  Estimated EstimateOf(const v1::JobSpec& way) const {
    // Fixed values, so that Resolve() compiles nothing.
    v1::JobSpec open = way;
    const bool chooses = open.fsdp().recompute() == v1::RECOMPUTE_UNSPECIFIED;
    if (chooses) open.mutable_fsdp()->set_recompute(v1::RECOMPUTE_NONE);
    const bool may_offload = open.fsdp().memory() == v1::MEMORY_RECOMPUTE_OR_OFFLOAD &&
                             !open.fsdp().offload().has_activation_layers();
    if (!open.fsdp().offload().has_activation_layers())
      open.mutable_fsdp()->mutable_offload()->set_activation_layers(0);
    const v1::JobSpec resolved = Resolve(open, budget_bytes_, nullptr);
    Spec spec = ToSpec(resolved);
    const std::vector<ModelFacts> stages = StagesOf(spec);
    std::vector<Layout> layouts;
    for (const ModelFacts& stage : stages) layouts.push_back(MakeLayout(stage, LayoutOptionsOf(spec)));
    const auto estimated = [&, this](int64_t offloaded_layers) {
      spec.offloaded_layers = offloaded_layers;
      return EstimateStep(spec, chooses, stages, layouts, {resolved.resources().ranks_per_node()});
    };
    if (!may_offload || stages.size() > 1 || !WhyLayersStay(spec.model).empty())
      return estimated(spec.offloaded_layers);
    std::vector<Estimated> tries;
    for (const int64_t layers : OffloadsToTry(BlocksOf(stages[0]))) tries.push_back(estimated(layers));
    const auto order = [](const Estimated& each) {
      return std::make_pair(!each.fits, each.fits ? each.seconds : static_cast<double>(each.peak_bytes));
    };
    return *std::min_element(tries.begin(), tries.end(),
                             [&](const auto& a, const auto& b) { return order(a) < order(b); });
  }

  Estimated EstimateStep(Spec spec, bool chooses_recompute, const std::vector<ModelFacts>& stages,
                         const std::vector<Layout>& layouts, const Placement& placement) const {
    Estimated estimated;
    const int64_t budget = spec.memory_budget_bytes;
    if (chooses_recompute && budget > 0) {
      const RecomputeChoice chosen = RecomputeFor(spec, stages, layouts);
      spec.recompute = chosen.recompute;
      spec.recompute_layers = chosen.layers;
    }
    for (size_t s = 0; s < stages.size(); ++s)
      estimated.peak_bytes =
          std::max(estimated.peak_bytes, EstimateMemory(spec, stages[s], layouts[s]).peak_bytes);
    estimated.fits = budget <= 0 || estimated.peak_bytes <= budget + budget / kEstimateSlackDivisor;
    if (estimated.fits) estimated.seconds = EstimateStepSeconds(spec, stages, layouts, profile_, placement);
    return estimated;
  }

  // Chooses recompute like Resolve(): the maximum that any stage needs; with several stages, on all layers.
  static RecomputeChoice RecomputeFor(const Spec& spec, const std::vector<ModelFacts>& stages,
                                      const std::vector<Layout>& layouts) {
    int64_t blocks = 0;
    for (const ModelFacts& stage : stages) blocks += BlocksOf(stage);
    const RecomputeChoice all{Recompute::kFull, blocks};
    RecomputeChoice most;
    for (size_t s = 0; s < stages.size(); ++s) {
      const auto needs = EstimateRecompute(spec, stages[s], layouts[s],
                                           stages.size() > 1 ? std::optional<int64_t>(blocks) : std::nullopt);
      if (!needs.has_value()) return all;
      if (needs->recompute >= most.recompute) most = *needs;
    }
    return most;
  }

  // Fills the fields shared by all configurations.
  void Describe() {
    v1::PlanSearch& search = searched_.search;
    const v1::JobSpec filled = WithDefaults(job_, nullptr);
    search.set_world_size(RanksOf(filled));
    search.set_global_batch(GlobalBatchOf(job_));
    search.set_sequence_length(filled.data().sequence_length());
    *search.mutable_profile() = ToProto(profile_);
    for (const std::string& field : options_.held) search.add_held(field);
    if (IsHeld("parallel.pipeline", options_.held)) return;
    if (const std::optional<Violation> why = WhyNoStages(job_)) *search.add_not_tried() = ToProto(*why);
  }

  void SimulateBest() {
    std::vector<v1::PlanSearch::Configuration> ways;
    int fitting = 0;
    const auto most = static_cast<size_t>(std::max(options_.simulated, kMaxSimulated));
    for (size_t i = 0; i < ranked_.size() && i < most; ++i) {
      if (static_cast<int>(i) >= options_.simulated && fitting >= options_.shown) break;
      if (const double spent = Spent(); spent > 1) {
        searched_.search.set_complete(false);
        if (spent >= kCancelled || fitting > 0 || i >= kSimulatedLate) break;
      }
      std::optional<v1::PlanSearch::Configuration> way =
          Planned(ApplyCandidate(job_, ranked_[i].candidate), ranked_[i].seconds);
      searched_.search.set_simulated(searched_.search.simulated() + 1);
      if (!way.has_value()) continue;
      if (way->fits()) {
        ++fitting;
        ways.push_back(*std::move(way));
      } else if (!closest_.has_value() || way->memory().peak_bytes() < closest_->peak_bytes) {
        closest_ = Ranked{ranked_[i].candidate, ranked_[i].seconds, way->memory().peak_bytes()};
      }
    }
    searched_.search.set_simulated_fitting(fitting);
    std::stable_sort(ways.begin(), ways.end(),
                     [](const v1::PlanSearch::Configuration& a, const v1::PlanSearch::Configuration& b) {
                       return std::make_tuple(a.prediction().step_seconds(), a.memory().peak_bytes()) <
                              std::make_tuple(b.prediction().step_seconds(), b.memory().peak_bytes());
                     });
    auto& found = *searched_.search.mutable_found();
    for (v1::PlanSearch::Configuration& way : ways) {
      const auto is_it = [&](const v1::PlanSearch::Configuration& other) { return IsOneWay(way, other); };
      if (found.size() < options_.shown && std::none_of(found.begin(), found.end(), is_it))
        *found.Add() = std::move(way);
    }
  }

  // Empty on an internal error, which is logged.
  std::optional<v1::PlanSearch::Configuration> Planned(const v1::JobSpec& job, double estimated_seconds) {
    const Plan plan = PlanWithoutAdvice(job, budget_bytes_);
    if (plan.program.instructions.empty()) return std::nullopt;
    v1::Plan proto;
    const absl::Status predicted =
        GuardChecks([&] { AddPrediction(plan, profile_, /*timeline=*/false, &proto); });
    if (!predicted.ok()) {
      NoteBug(job, predicted);
      return std::nullopt;
    }
    searched_.search.set_parameters(plan.full_layout().elements());
    // Configurations with communication inside units have a smaller budget.
    searched_.search.set_budget_bytes(
        std::max<int64_t>(searched_.search.budget_bytes(), plan.spec.memory_budget_bytes));
    v1::PlanSearch::Configuration way;
    *way.mutable_spec() = ChosenSpec(job, plan.resolved);
    *way.mutable_mesh() = ToProto(plan.spec.mesh);
    way.set_micro_batches(plan.spec.micro_batches_per_step());
    *way.mutable_memory() = ToProto(plan.memory);
    *way.mutable_prediction() = std::move(*proto.mutable_prediction());
    way.mutable_prediction()->clear_profile();
    way.set_estimated_seconds(estimated_seconds);
    way.set_program_hash(plan.program_hash);
    way.set_fits(plan.accepted());
    return way;
  }

  // The spec as a user would write it: searched fields are explicit instead of `auto`; nothing else is added.
  static v1::JobSpec ChosenSpec(v1::JobSpec job, const v1::JobSpec& resolved) {
    if (job.parallel().ByteSizeLong() == 0) job.clear_parallel();
    job.mutable_fsdp()->set_recompute(resolved.fsdp().recompute());
    if (resolved.fsdp().has_recompute_layers()) {
      job.mutable_fsdp()->set_recompute_layers(resolved.fsdp().recompute_layers());
    }
    if (resolved.fsdp().offload().activation_layers() > 0) {
      job.mutable_fsdp()->mutable_offload()->set_activation_layers(
          resolved.fsdp().offload().activation_layers());
    }
    return job;
  }

  const v1::JobSpec& job_;
  const DeviceProfile& profile_;
  const SearchOptions& options_;
  const int64_t budget_bytes_;
  Searched searched_;
  std::vector<Ranked> ranked_;
  std::optional<Ranked> closest_;
  std::optional<Violation> bug_;
};

}  // namespace

Searched SearchPlans(const v1::JobSpec& job, const DeviceProfile& profile, const SearchOptions& options) {
  Searched searched;
  const absl::Status guarded = GuardChecks([&] { searched = Search(job, profile, options).Run(); });
  if (!guarded.ok()) searched = {{}, {CompilerBug(job, guarded)}};
  return searched;
}

}  // namespace fsdpd
