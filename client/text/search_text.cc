#include "client/text/search_text.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <absl/strings/str_join.h>

#include <algorithm>
#include <vector>

#include "base/spec_text/enum_name.h"
#include "base/text.h"
#include "client/text/plan_text.h"
#include "client/text/text_table.h"
#include "fsdp/plan/prediction.h"
#include "fsdp/plan/spec/defaults.h"

namespace fsdpd {
namespace {

using Configuration = v1::PlanSearch::Configuration;

std::string StrategyText(const v1::Fsdp& fsdp) {
  const bool parts = fsdp.outer().size() > 1 && fsdp.outer().strategy() == v1::STRATEGY_OPTIM;
  return absl::StrCat(ShortEnumName(fsdp.strategy()), fsdp.keep_gathered() ? ", keep_gathered" : "",
                      parts ? ", outer optim" : "");
}

std::string LayersText(int64_t layers) { return absl::StrCat(layers, layers == 1 ? " layer" : " layers"); }

// recompute_layers applies only to layers that are not offloaded, and may exceed their number ("at most").
std::string RecomputeText(const v1::Fsdp& fsdp) {
  const bool offloads = fsdp.offload().activation_layers() > 0;
  const std::string on = fsdp.has_recompute_layers() ? absl::StrCat(" on ", offloads ? "at most " : "",
                                                                    LayersText(fsdp.recompute_layers()))
                                                     : "";
  if (fsdp.recompute() == v1::RECOMPUTE_UNSPECIFIED) return "auto";
  if (fsdp.recompute() == v1::RECOMPUTE_NONE) return "none";
  const bool rest = fsdp.recompute() == v1::RECOMPUTE_FULL && !on.empty();
  return absl::StrCat(ShortEnumName(fsdp.recompute()), on, rest ? ", selective on the rest" : "");
}

std::string CheckpointingText(const v1::Fsdp& fsdp) {
  const std::string recompute = RecomputeText(fsdp);
  const int64_t layers = fsdp.offload().activation_layers();
  if (layers == 0) return recompute;
  return absl::StrCat(recompute, "; activations of ", LayersText(layers), " offloaded");
}

std::string StagesText(const v1::Parallel& parallel) {
  if (parallel.pipeline_chunks() > 1)
    return absl::StrCat(", ", parallel.pipeline_chunks(), " chunks per stage");
  return parallel.pipeline_schedule() == v1::PIPELINE_SCHEDULE_ZERO_BUBBLE ? ", zero_bubble" : "";
}

void AddRow(const v1::PlanSearch& search, const std::string& number, const Configuration& way,
            TextTable* table) {
  const v1::Prediction& p = way.prediction();
  const double world = static_cast<double>(std::max<int64_t>(search.world_size(), 1));
  const v1::JobSpec& spec = way.spec();
  const v1::JobSpec filled = WithDefaults(spec, nullptr);
  table->Add({number, Milliseconds(p.step_seconds()), absl::StrFormat("%.0f", p.tokens_per_second() / world),
              absl::StrFormat("%.1f%%", 100 * p.mfu()), Milliseconds(ExposedSeconds(p)),
              HumanBytes(way.memory().peak_bytes()),
              absl::StrCat(MeshText(way.mesh()), StagesText(spec.parallel())), StrategyText(filled.fsdp()),
              absl::StrCat(filled.train().micro_batch(), " x ", way.micro_batches()),
              CheckpointingText(spec.fsdp())});
}

std::string ClosestText(const v1::PlanSearch& search) {
  const Configuration& way = search.closest();
  const int64_t over = way.memory().peak_bytes() - search.budget_bytes();
  std::string text =
      absl::StrCat("\nno configuration fits; the closest one needs ", HumanBytes(over), " more per rank");
  const auto& components = way.memory().components();
  const auto largest = std::max_element(components.begin(), components.end(),
                                        [](const auto& a, const auto& b) { return a.bytes() < b.bytes(); });
  if (largest != components.end()) {
    absl::StrAppend(&text, "; its largest component: ", largest->name(), ", ", HumanBytes(largest->bytes()));
  }
  if (way.spec().fsdp().memory() != v1::MEMORY_RECOMPUTE_OR_OFFLOAD && !way.spec().fsdp().has_offload())
    absl::StrAppend(&text, "\noffload was not searched; `fsdpctl plan` shows its effect");
  return absl::StrCat(text, "\n");
}

std::string CountText(const v1::PlanSearch& search) {
  // An older coordinator does not report simulated_fitting.
  const int64_t fitting = std::max<int64_t>(search.simulated_fitting(), search.found_size());
  return absl::StrCat("searched ", search.tried(), " equivalent configurations: ", search.allowed(),
                      " valid, ", search.fitting(), " estimated to fit; simulated the best ",
                      search.simulated(), ": ", fitting, " fit, in ",
                      absl::StrFormat("%.1f s", search.seconds()),
                      search.complete() ? "" : "; INCOMPLETE: the time limit was reached", "\n");
}

std::string ViolationsText(const google::protobuf::RepeatedPtrField<v1::Violation>& violations,
                           const char* head) {
  std::string text;
  for (const v1::Violation& fault : violations)
    absl::StrAppend(&text, "  ", fault.field(), ": ", fault.reason(), fault.fix().empty() ? "" : "; ",
                    fault.fix(), " [", fault.rule(), "]\n");
  return text.empty() ? "" : absl::StrCat("\n", head, ":\n", text);
}

}  // namespace

std::string SearchText(const v1::PlanSearch& search, const std::string& name) {
  std::string text = absl::StrCat(
      name, ": ", HumanCount(static_cast<double>(search.parameters())), " parameters on ",
      search.world_size(), " ranks, ", search.global_batch(), " samples of ", search.sequence_length(),
      " tokens per step, ", search.profile().name(),
      search.budget_bytes() > 0 ? absl::StrCat(" with ", HumanBytes(search.budget_bytes()), " per rank") : "",
      "\n");
  if (search.held_size() > 0) absl::StrAppend(&text, "held: ", absl::StrJoin(search.held(), ", "), "\n");
  if (search.budget_from_profile()) {
    absl::StrAppend(&text, "no suitable node reports its memory; using ", HumanBytes(search.budget_bytes()),
                    " of the profile\n");
  }
  absl::StrAppend(&text, CountText(search));
  if (search.has_closest()) absl::StrAppend(&text, ClosestText(search));
  const auto is_fp8 = [](const Configuration& way) {
    return way.spec().precision().compute() == v1::DTYPE_FP8;
  };
  const bool any_fp8 = std::any_of(search.found().begin(), search.found().end(), is_fp8) ||
                       is_fp8(search.closest()) || is_fp8(search.as_written());
  TextTable table({"", "STEP", "TOKENS/S/RANK", any_fp8 ? "MFU (BF16 PEAK)" : "MFU", "EXPOSED", "PEAK",
                   "MESH", "STRATEGY", "MICRO_BATCH", "ACTIVATION CHECKPOINTING"});
  for (int i = 0; i < search.found_size(); ++i) {
    AddRow(search, absl::StrCat(i + 1), search.found(i), &table);
  }
  if (search.has_closest()) AddRow(search, "closest", search.closest(), &table);
  if (search.has_as_written()) {
    AddRow(search, search.as_written().fits() ? "as written" : "as written, too large", search.as_written(),
           &table);
  }
  return absl::StrCat(text, "\n", table.Render(2),
                      ViolationsText(search.as_written_violations(), "the spec as written is rejected"),
                      ViolationsText(search.not_tried(), "not searched"));
}

}  // namespace fsdpd
