#include "client/migrate/megatron_experts.h"

#include <absl/strings/ascii.h>
#include <absl/strings/match.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <absl/strings/str_split.h>

#include <algorithm>

namespace fsdpd {
namespace {

// Recursive-descent parser of the grammar
//   sum = product {"+" product}; product = list {"*" integer}; list = "(" sum ")" | "[" bit {"," bit} "]".
class PatternReader {
 public:
  explicit PatternReader(absl::string_view text) : rest_(text) {}

  std::optional<std::vector<int>> Parse() {
    std::optional<std::vector<int>> list = ParseSum(0);
    return rest_.empty() ? list : std::nullopt;
  }

 private:
  static constexpr int kMaxDepth = 16;

  bool Consume(char c) {
    rest_ = absl::StripLeadingAsciiWhitespace(rest_);
    if (rest_.empty() || rest_.front() != c) return false;
    rest_ = absl::StripLeadingAsciiWhitespace(rest_.substr(1));
    return true;
  }

  std::optional<std::vector<int>> ParseSum(int depth) {
    std::optional<std::vector<int>> sum = ParseProduct(depth);
    while (sum.has_value() && Consume('+')) {
      const std::optional<std::vector<int>> more = ParseProduct(depth);
      if (!more.has_value() || sum->size() + more->size() > kMaxPatternLayers) return std::nullopt;
      sum->insert(sum->end(), more->begin(), more->end());
    }
    return sum;
  }

  std::optional<std::vector<int>> ParseProduct(int depth) {
    std::optional<std::vector<int>> list = ParseList(depth);
    while (list.has_value() && Consume('*')) {
      const size_t digits = std::min(rest_.find_first_not_of("0123456789"), rest_.size());
      uint32_t times = 0;
      if (!absl::SimpleAtoi(rest_.substr(0, digits), &times) || times * list->size() > kMaxPatternLayers)
        return std::nullopt;
      rest_ = absl::StripLeadingAsciiWhitespace(rest_.substr(digits));
      const std::vector<int> once = *list;
      list->clear();
      for (uint32_t i = 0; i < times; ++i) list->insert(list->end(), once.begin(), once.end());
    }
    return list;
  }

  std::optional<std::vector<int>> ParseList(int depth) {
    if (depth > kMaxDepth) return std::nullopt;
    if (Consume('(')) {
      std::optional<std::vector<int>> list = ParseSum(depth + 1);
      return Consume(')') ? list : std::nullopt;
    }
    if (!Consume('[')) return std::nullopt;
    std::vector<int> list;
    do {
      const bool one = Consume('1');
      if (!one && !Consume('0')) return std::nullopt;
      list.push_back(one);
    } while (Consume(','));
    return Consume(']') ? std::optional(list) : std::nullopt;
  }

  absl::string_view rest_;
};

class ExpertsConverter {
 public:
  ExpertsConverter(SpecConversion* conversion, v1::Llama* llama)
      : c_(*conversion), s_(conversion->settings), llama_(*llama), experts_(*llama->mutable_experts()) {}

  void Run(int64_t count) {
    experts_.set_count(count);
    experts_.set_per_token(s_.Integer("moe_router_topk").value_or(2));
    if (const auto size = s_.Integer("moe_ffn_hidden_size")) experts_.set_intermediate_size(*size);
    if (const auto size = s_.Integer("moe_shared_expert_intermediate_size"); size.value_or(0) > 0)
      experts_.set_shared_intermediate_size(*size);
    Layers();
    Scores();
    Groups();
    Bias();
    Balance();
    Router();
  }

 private:
  // moe_layer_freq is a number n (every n-th layer has experts) or a list of 0 and 1. A spec has only a
  // number of dense layers at the start, so the list must be sorted: zeros, then ones.
  void Layers() {
    const Setting* written = s_.Find("moe_layer_freq");
    if (written == nullptr || written->open) return;
    std::string text = absl::StrJoin(written->values, ",");
    if (text == "1") return;
    if (written->values.size() > 1) text = absl::StrCat("[", text, "]");
    const std::vector<int> has = ReadLayerPattern(text).value_or(std::vector<int>());
    const int64_t dense = std::find(has.begin(), has.end(), 1) - has.begin();
    if (dense == llama_.layers() || static_cast<int64_t>(has.size()) != llama_.layers() ||
        !std::is_sorted(has.begin(), has.end())) {
      c_.Error("expert_layers", "moe_layer_freq",
               absl::StrCat("layers without experts must be the first of the ", llama_.layers(), " layers"),
               "write 1, or a list with one entry per layer such as [0]*3+[1]*58");
      return;
    }
    experts_.set_dense_layers(dense);
  }

  // Megatron takes the softmax over the chosen experts unless moe_router_pre_softmax is set. That equals the
  // softmax over all experts, renormalized over the chosen ones, which the spec calls `normalized`.
  void Scores() {
    const std::string function = s_.Lower("moe_router_score_function").value_or("softmax");
    const bool first = s_.Flag("moe_router_pre_softmax");
    if (function == "sigmoid") {
      experts_.set_scores(v1::Llama::Experts::SCORES_SIGMOID);
      experts_.set_normalized(experts_.per_token() > 1);
    } else if (function == "softmax") {
      experts_.set_normalized(!first);
    } else {
      c_.Error("expert_scores", "moe_router_score_function",
               absl::StrCat("'", function, "' is not supported"), "write softmax or sigmoid");
    }
    if (const auto scale = s_.Real("moe_router_topk_scaling_factor")) experts_.set_weight_scale(*scale);
  }

  void Groups() {
    const int64_t groups = s_.Integer("moe_router_num_groups").value_or(0);
    const int64_t chosen = s_.Integer("moe_router_group_topk").value_or(0);
    if (groups <= 0 && chosen <= 0) return;
    if (groups <= 0 || chosen <= 0) {
      c_.Error("expert_groups", groups > 0 ? "moe_router_num_groups" : "moe_router_group_topk",
               "the number of groups and the number of groups per token are set together",
               "write both --moe-router-num-groups and --moe-router-group-topk, or neither");
      return;
    }
    if (experts_.per_token() % chosen != 0) {
      c_.Error("expert_groups", "moe_router_group_topk",
               absl::StrCat(experts_.per_token(), " experts per token are not a multiple of ", chosen,
                            " groups per token"),
               "set --moe-router-group-topk to a divisor of --moe-router-topk");
      return;
    }
    experts_.set_groups(groups);
    experts_.set_groups_per_token(chosen);
    const int64_t counted = experts_.per_token() / chosen;
    if (counted == 1) {
      experts_.set_group_scores(v1::Llama::Experts::GROUP_SCORES_BEST);
    } else if (counted != 2) {
      c_.Error("expert_groups", "moe_router_group_topk",
               absl::StrCat("selecting groups by their ", counted,
                            " highest scores is not supported, only by 1 or 2"),
               "set --moe-router-group-topk to --moe-router-topk, or to half of it");
    }
    if (experts_.scores() != v1::Llama::Experts::SCORES_SIGMOID && experts_.normalized()) {
      c_.Error("expert_groups", "moe_router_num_groups",
               "selecting groups by logits is not supported, only by scores",
               "add --moe-router-pre-softmax, or write --moe-router-score-function sigmoid");
    }
  }

  void Bias() {
    if (!s_.Flag("moe_router_enable_expert_bias")) return;
    experts_.set_selection_bias(true);
    experts_.set_bias_update_rate(s_.Real("moe_router_bias_update_rate").value_or(1e-3));
  }

  void Balance() {
    if (const auto z = s_.Real("moe_z_loss_coeff")) experts_.set_z_loss(*z);
    const Setting* kinds = s_.Find("moe_router_load_balancing_type");
    if (kinds != nullptr && kinds->values.size() > 1) {
      c_.Error("expert_balance", "moe_router_load_balancing_type",
               "several balancing losses are not supported", "write seq_aux_loss");
      return;
    }
    const std::string kind = s_.Lower("moe_router_load_balancing_type").value_or("aux_loss");
    const double weight = s_.Real("moe_aux_loss_coeff").value_or(0);
    if (kind != "none" && !absl::EndsWith(kind, "aux_loss")) {
      c_.Error("expert_balance", "moe_router_load_balancing_type",
               absl::StrCat("'", kind, "' is not supported"), "write seq_aux_loss, aux_loss or none");
      return;
    }
    if (kind == "none" || weight == 0) return;
    experts_.set_balance_loss(weight);
    // With one sample per micro-batch, aux_loss is already per sample.
    const bool per_sample = kind == "aux_loss" && s_.Integer("micro_batch_size").value_or(1) == 1;
    if (kind != "seq_aux_loss" && !per_sample) {
      c_.Adjust("expert_balance_by_sample", "moe_router_load_balancing_type",
                "experts are balanced within each sample, which is stricter",
                kind == "aux_loss" ? "each micro-batch" : "each global batch", "each sample");
    }
    if (experts_.selection_bias() || experts_.has_groups()) {
      c_.Adjust("expert_balance_of_choices", "moe_aux_loss_coeff",
                "the balancing loss counts the chosen experts, not those with the highest scores",
                "highest scores", "chosen experts");
    }
  }

  void Router() {
    const std::string type = s_.Lower("moe_router_dtype").value_or("none");
    if (type != "fp32") {
      c_.Adjust("router_in_fp32", "moe_router_dtype", "router logits are computed in fp32",
                type == "none" ? "the layer's dtype" : type, "fp32");
    }
    if (s_.Flag("moe_router_force_load_balancing")) {
      c_.Adjust("router_chooses", "moe_router_force_load_balancing",
                "forced load balancing is only for benchmarks", "true", "false");
    }
  }

  SpecConversion& c_;
  Settings& s_;
  v1::Llama& llama_;
  v1::Llama::Experts& experts_;
};

}  // namespace

std::optional<std::vector<int>> ReadLayerPattern(absl::string_view text) {
  return PatternReader(absl::StripAsciiWhitespace(text)).Parse();
}

void ConvertExperts(SpecConversion* conversion, v1::Llama* llama) {
  const int64_t count = conversion->settings.Integer("num_experts").value_or(0);
  if (count > 0) ExpertsConverter(conversion, llama).Run(count);
}

}  // namespace fsdpd
