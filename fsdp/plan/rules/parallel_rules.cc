// Rules of parallel.
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "base/limits.h"
#include "fsdp/plan/mesh/sequence_partition.h"
#include "fsdp/plan/rules/rule_table.h"

namespace fsdpd {
namespace {

std::string Ranks(int64_t count, const char* of_what) {
  return absl::StrCat(count, count == 1 ? " rank" : " ranks", of_what);
}

bool HasStages(const Facts& f) { return f.IsValid({"parallel.pipeline"}) && f.job.parallel().pipeline() > 1; }

// Describes Facts::replica_ranks() in words.
const char* OfReplica(const Facts& f) {
  if (HasStages(f)) return f.outer_size() > 1 ? " of a stage's replica" : " of a stage";
  return f.outer_size() > 1 ? " of a replica" : "";
}

// The fields whose reduction would leave more ranks.
std::vector<std::string> TakersOfRanks(const Facts& f) {
  std::vector<std::string> fields;
  if (f.outer_size() > 1) fields.push_back("fsdp.outer.size");
  if (HasStages(f)) fields.push_back("parallel.pipeline");
  return fields;
}

std::string LeaveOut(const char* field, const std::vector<std::string>& takers) {
  return absl::StrCat(
      "leave ", field, " out",
      takers.empty() ? "" : absl::StrCat(", or write a smaller ", absl::StrJoin(takers, " or ")));
}

// Findings about the model that no process group can fix, so they are reported in addition to errors in the
// groups.
bool WantsToCutMatrices(const Facts& f) {
  return f.job.parallel().tensor() > 1 && f.job.parallel().tensor() <= kMaxWorld;
}

bool CutsMatrices(const Facts& f) { return f.IsValid({"parallel.tensor"}) && WantsToCutMatrices(f); }

// Key heads may also divide the number of ranks.
bool SplitsKeys(int64_t kv_heads, int64_t tensor) { return kv_heads % tensor == 0 || tensor % kv_heads == 0; }

// With experts: of one expert.
bool SplitsFfns(const LlamaConfig& llama, int64_t tensor) {
  return llama.intermediate_size % tensor == 0 && llama.experts.intermediate_size % tensor == 0 &&
         llama.experts.shared_intermediate_size % tensor == 0;
}

bool Splits(const LlamaConfig& llama, int64_t tensor) {
  return llama.heads % tensor == 0 && SplitsKeys(llama.kv_heads, tensor) && SplitsFfns(llama, tensor) &&
         llama.vocab_size % tensor == 0;
}

// "write tensor: 1, 2 or 4": degrees that divide both the model and the ranks of a node.
std::string TensorSizes(const Facts& f, const LlamaConfig& llama) {
  std::vector<int64_t> sizes;
  const int64_t most = f.WorldIsKnown() ? f.job.resources().ranks_per_node() : 8;
  for (int64_t size = 1; size <= std::min(most, llama.heads); ++size) {
    if (most % size == 0 && Splits(llama, size)) sizes.push_back(size);
  }
  const int64_t last = sizes.back();
  sizes.pop_back();
  return absl::StrCat("write tensor: ", absl::StrJoin(sizes, ", "), sizes.empty() ? "" : " or ", last);
}

Findings CutsModel(const Facts& f) {
  if (!CutsMatrices(f)) return {};
  const std::optional<LlamaConfig> llama = f.llama();
  if (!llama.has_value() || Splits(*llama, f.job.parallel().tensor())) return {};
  const int64_t tensor = f.job.parallel().tensor();
  std::vector<std::string> uneven;
  const auto check = [&](int64_t size, const char* what) {
    if (size % tensor != 0) uneven.push_back(absl::StrCat(size, " ", what));
  };
  check(llama->heads, "heads");
  if (!SplitsKeys(llama->kv_heads, tensor)) check(llama->kv_heads, "key heads");
  check(llama->intermediate_size, "columns of the FFN");
  check(llama->experts.intermediate_size, "columns of an expert");
  check(llama->experts.shared_intermediate_size, "columns of the shared expert");
  check(llama->vocab_size, "vocabulary entries");
  return {{absl::StrCat(absl::StrJoin(uneven, ", "), " do not split into ", tensor, " equal parts"),
           TensorSizes(f, *llama)}};
}

// Sequence parallelism: the tokens of a micro-batch are sharded over the tensor-parallel ranks.
Findings CutsTokens(const Facts& f) {
  if (!CutsMatrices(f) || !f.IsValid({"parallel.context", "data.sequence_length", "train.micro_batch"}))
    return {};
  const int64_t tensor = f.job.parallel().tensor(), length = f.job.data().sequence_length();
  const int64_t micro_batch = f.job.train().micro_batch(), context = f.job.parallel().context();
  if (micro_batch < 1 || length % context != 0) return {};  // Another rule reports it.
  if ((micro_batch % tensor) * (length / context % tensor) % tensor == 0) return {};
  const int64_t step = std::lcm(context * (context > 1 ? SequencePartition::kChunksPerRank : 1),
                                context * (tensor / std::gcd(tensor, micro_batch)));
  const int64_t below = length / step * step;
  return {
      {absl::StrCat(tensor, " tensor-parallel ranks cannot shard ", micro_batch, " x ", length / context,
                    " tokens of a micro-batch evenly"),
       absl::StrCat("write sequence_length: ", below > 0 ? absl::StrCat(below, " or ") : "", below + step)}};
}

bool SharesExperts(const Facts& f) { return f.IsValid({"parallel.expert"}) && f.job.parallel().expert() > 1; }

// Ranks of a replica, in groups that work on one sample.
Findings ExpertDividesRanks(const Facts& f) {
  if (!SharesExperts(f) || !f.WorldIsKnown()) return {};
  if (!f.IsValid({"fsdp.outer", "parallel.tensor", "parallel.context"})) return {};
  const int64_t together = f.job.parallel().context() * f.job.parallel().tensor();
  const int64_t expert = f.job.parallel().expert(), groups = f.replica_ranks() / together;
  if (groups > 0 && groups % expert == 0) return {};
  return {{absl::StrCat(groups, together > 1 ? absl::StrCat(" groups of ", together, " ranks") : " ranks",
                        f.outer_size() > 1 ? " of a replica" : "", " do not split into groups of ", expert),
           "choose a divisor of them"}};
}

bool WantsToCutSamples(const Facts& f) {
  return f.job.parallel().context() > 1 && f.job.parallel().context() <= kMaxWorld;
}

bool CutsSamples(const Facts& f) { return f.IsValid({"parallel.context"}) && WantsToCutSamples(f); }

const Rule kRules[] = {
    {"parallel_tensor_range", kError, "parallel.tensor", "parallel.tensor must be positive and at most 16384",
     Between(1, kMaxWorld, "omit it (default: 1)")},
    {"parallel_tensor_within_node", kError, "parallel.tensor",
     "ranks_per_node, and the ranks of a replica, must be multiples of parallel.tensor",
     [](const Facts& f) -> Findings {
       if (!CutsMatrices(f) || !f.WorldIsKnown() || !f.IsValid({"fsdp.outer"})) return {};
       const int64_t tensor = f.job.parallel().tensor(), ranks = f.job.resources().ranks_per_node();
       if (ranks % tensor != 0) {
         return {{absl::StrCat(ranks, " ranks per node do not split into tensor-parallel groups of ", tensor,
                               "; a group must not span nodes"),
                  "choose a divisor of resources.ranks_per_node"}};
       }
       const int64_t of_replica = f.replica_ranks();
       if (of_replica % tensor == 0) return {};
       return {{absl::StrCat(Ranks(of_replica, OfReplica(f)), " cannot be split into groups of ", tensor),
                of_replica == 1 ? LeaveOut("parallel.tensor", TakersOfRanks(f))
                                : absl::StrCat("choose a divisor of ", of_replica)}};
     }},
    {"parallel_tensor_needs_llama", kError, "parallel.tensor",
     "parallel.tensor supports only models of the Llama family",
     When{[](const Facts& f) { return WantsToCutMatrices(f) && f.HasOtherFamily(); },
          "tensor parallelism does not support this model",
          "leave parallel.tensor out; FSDP shards the parameters anyway"}},
    {"parallel_tensor_cuts_model", kError, "parallel.tensor",
     "heads, FFN sizes and vocab_size must be multiples of parallel.tensor; kv_heads must divide it or be a "
     "multiple",
     CutsModel},
    {"parallel_context_range", kError, "parallel.context",
     "parallel.context must be positive and at most 16384", Between(1, kMaxWorld, "omit it (default: 1)")},
    {"parallel_context_divides_ranks", kError, "parallel.context",
     "the ranks of a replica must be a multiple of parallel.context x parallel.tensor",
     [](const Facts& f) -> Findings {
       if (!CutsSamples(f) || !f.WorldIsKnown() || !f.IsValid({"fsdp.outer"})) return {};
       const int64_t tensor = f.IsValid({"parallel.tensor"}) ? f.job.parallel().tensor() : 1;
       const int64_t context = f.job.parallel().context(), ranks = f.replica_ranks() / tensor;
       if (ranks > 0 && ranks % context == 0) return {};
       const std::string all = Ranks(f.replica_ranks(), OfReplica(f));
       if (ranks <= 1) {
         std::vector<std::string> takers = TakersOfRanks(f);
         if (tensor > 1) takers.push_back("parallel.tensor");
         return {
             {absl::StrCat(
                  all, tensor > 1 ? absl::StrCat(" (all in one parallel.tensor group of ", tensor, ")") : "",
                  " cannot be split into groups of ", context),
              LeaveOut("parallel.context", takers)}};
       }
       return {
           {absl::StrCat(
                all,
                tensor > 1 ? absl::StrCat(", in ", ranks, " groups of parallel.tensor ", tensor, ",") : "",
                " cannot be split into groups of ", context),
            absl::StrCat("choose a divisor of ", ranks)}};
     }},
    {"parallel_context_needs_llama", kError, "parallel.context",
     "parallel.context supports only models of the Llama family",
     When{[](const Facts& f) { return WantsToCutSamples(f) && f.HasOtherFamily(); },
          "context parallelism does not support this model", "leave parallel.context out"}},
    {"parallel_context_cuts_sequence", kError, "data.sequence_length",
     "sequence_length must be a multiple of 2 x parallel.context",
     [](const Facts& f) -> Findings {
       if (!CutsSamples(f) || !f.IsValid({"data.sequence_length"})) return {};
       const int64_t chunks = SequencePartition::kChunksPerRank * f.job.parallel().context();
       const int64_t length = f.job.data().sequence_length(), below = length / chunks * chunks;
       if (length == below) return {};
       const std::string or_less = below > 0 ? absl::StrCat(below, " or ") : "";
       return {{absl::StrCat(f.job.parallel().context(), " context-parallel ranks need ", chunks,
                             " equal chunks, but ", length, " tokens do not divide evenly"),
                absl::StrCat("write sequence_length: ", or_less, below + chunks)}};
     }},
    {"parallel_tensor_cuts_tokens", kError, "data.sequence_length",
     "micro_batch x sequence_length / parallel.context must be a multiple of parallel.tensor", CutsTokens},
    {"parallel_expert_range", kError, "parallel.expert", "parallel.expert must be positive and at most 16384",
     Between(1, kMaxWorld, "omit it (default: 1)")},
    {"parallel_expert_divides_experts", kError, "parallel.expert",
     "model.llama.experts.count must be a multiple of parallel.expert",
     [](const Facts& f) -> Findings {
       if (!SharesExperts(f)) return {};
       const bool none = f.job.model().has_llama() && !f.job.model().llama().has_experts();
       if (!f.ModelIsKnown() && !none) return {};
       const std::optional<LlamaConfig> llama = f.llama();
       const int64_t count = llama.has_value() ? llama->experts.count : 0, expert = f.job.parallel().expert();
       if (count == 0) {
         return {{"the model has no experts", "leave parallel.expert out, or write model.llama.experts"}};
       }
       if (count % expert == 0) return {};
       return {{absl::StrCat(count, " experts do not split into ", expert, " equal parts"),
                "choose a divisor of model.llama.experts.count"}};
     }},
    {"parallel_expert_divides_ranks", kError, "parallel.expert",
     "ranks of a replica / (context x tensor) must be a multiple of parallel.expert", ExpertDividesRanks},
    {"parallel_expert_or_tensor", kError, "parallel.expert",
     "parallel.expert is not supported with parallel.tensor",
     When{[](const Facts& f) { return SharesExperts(f) && CutsMatrices(f); },
          "expert parallelism is not yet supported with tensor parallelism",
          "leave parallel.tensor out, or parallel.expert"}},
};

}  // namespace

absl::Span<const Rule> ParallelRules() { return kRules; }

}  // namespace fsdpd
