// parallel.
#include <absl/strings/str_cat.h>

#include <string>
#include <variant>

#include "base/limits.h"
#include "fsdp/plan/mesh/sequence_cut.h"
#include "fsdp/plan/rules/rule_table.h"

namespace fsdpd {
namespace {

constexpr FaultLevel kError = FaultLevel::kError;

Findings OnlyOne(int64_t value, const char* name, const char* what) {
  if (value == 1) return {};
  if (value < 1) return {{absl::StrCat(name, " is ", value, " and must be 1"), "leave it out for 1"}};
  return {
      {absl::StrCat(what, " parallelism is not supported yet"),
       absl::StrCat("write ", name, ": 1 or leave it out; parameters are sharded over all ranks anyway")}};
}

bool CutsSamples(const Facts& f) { return f.Sound({"parallel.context"}) && f.job.parallel().context() > 1; }

const Rule kRules[] = {
    {"tensor_parallel_unsupported", kError, "parallel.tensor", "parallel.tensor is 1",
     [](const Facts& f) { return OnlyOne(f.job.parallel().tensor(), "tensor", "tensor"); }},
    {"parallel_context_range", kError, "parallel.context", "parallel.context is positive and at most 16384",
     [](const Facts& f) {
       return Between(f.job.parallel().context(), kMaxWorld, "context", "leave it out for 1");
     }},
    {"parallel_context_divides_ranks", kError, "parallel.context",
     "ranks split into replicas, and those into groups that share a sample",
     [](const Facts& f) -> Findings {
       if (!CutsSamples(f) || !f.Sound({"resources", "fsdp.outer"})) return {};
       const int64_t context = f.job.parallel().context(), ranks = f.world() / f.outer_size();
       if (ranks % context == 0) return {};
       return {{absl::StrCat(ranks, f.outer_size() > 1 ? " ranks of a replica" : " ranks",
                             " do not split into groups of ", context),
                "choose a divisor of them, at most the ranks of a node"}};
     }},
    {"parallel_context_needs_llama", kError, "parallel.context",
     "samples are cut for models of the llama family",
     [](const Facts& f) -> Findings {
       if (!CutsSamples(f) || !f.ModelIsKnown() || std::holds_alternative<LlamaConfig>(f.model())) return {};
       return {{"attention of this model sees the tokens of its own rank alone",
                "leave parallel.context out; ranks then read samples of their own"}};
     }},
    {"parallel_context_cuts_sequence", kError, "data.sequence_length",
     "sequence_length is a multiple of 2 x parallel.context",
     [](const Facts& f) -> Findings {
       if (!CutsSamples(f) || !f.Sound({"data.sequence_length"})) return {};
       const int64_t chunks = SequenceCut::kHalves * f.job.parallel().context();
       const int64_t length = f.job.data().sequence_length(), below = length / chunks * chunks;
       if (length == below) return {};
       const std::string or_less = below > 0 ? absl::StrCat(below, " or ") : "";
       return {{absl::StrCat(f.job.parallel().context(), " ranks share a sample in ", chunks,
                             " equal chunks, and ", length, " tokens do not split so"),
                absl::StrCat("write sequence_length: ", or_less, below + chunks)}};
     }},
    {"expert_parallel_unsupported", kError, "parallel.expert", "parallel.expert is 1",
     [](const Facts& f) { return OnlyOne(f.job.parallel().expert(), "expert", "expert"); }},
    {"pipeline_parallel_unsupported", kError, "parallel.pipeline", "parallel.pipeline is 1",
     [](const Facts& f) { return OnlyOne(f.job.parallel().pipeline(), "pipeline", "pipeline"); }},
};

}  // namespace

const std::vector<Rule>& ParallelRules() {
  static const auto* const rules = new std::vector<Rule>(std::begin(kRules), std::end(kRules));
  return *rules;
}

}  // namespace fsdpd
