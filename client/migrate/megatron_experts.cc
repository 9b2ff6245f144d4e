#include "client/migrate/megatron_experts.h"

#include <absl/strings/ascii.h>
#include <absl/strings/match.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <absl/strings/strip.h>

#include <algorithm>
#include <utility>

namespace fsdpd {
namespace {

bool Consume(absl::string_view* rest, char c) {
  *rest = absl::StripLeadingAsciiWhitespace(*rest);
  return absl::ConsumePrefix(rest, absl::string_view(&c, 1));
}

// Recursive-descent parser of the grammar
//   sum = list {"*" integer} {"+" list {"*" integer}}; list = "(" sum ")" | "[" bit {"," bit} "]".
bool AppendSum(absl::string_view* rest, int depth, std::vector<int>* sum) {
  constexpr int kMaxDepth = 16;
  do {
    std::vector<int> list;
    if (Consume(rest, '(')) {
      if (depth == kMaxDepth || !AppendSum(rest, depth + 1, &list) || !Consume(rest, ')')) return false;
    } else {
      if (!Consume(rest, '[')) return false;
      do {
        const bool one = Consume(rest, '1');
        if (!one && !Consume(rest, '0')) return false;
        list.push_back(one);
      } while (Consume(rest, ','));
      if (!Consume(rest, ']')) return false;
    }
    while (Consume(rest, '*')) {
      *rest = absl::StripLeadingAsciiWhitespace(*rest);
      const size_t digits = std::min(rest->find_first_not_of("0123456789"), rest->size());
      uint32_t times = 0;
      if (!absl::SimpleAtoi(rest->substr(0, digits), &times) || times * list.size() > kMaxPatternLayers)
        return false;
      rest->remove_prefix(digits);
      const std::vector<int> once = std::exchange(list, {});
      for (uint32_t i = 0; i < times; ++i) list.insert(list.end(), once.begin(), once.end());
    }
    if (sum->size() + list.size() > kMaxPatternLayers) return false;
    sum->insert(sum->end(), list.begin(), list.end());
  } while (Consume(rest, '+'));
  return true;
}

using Experts = v1::Llama::Experts;

// moe_layer_freq is a number n (every n-th layer has experts) or a list of 0 and 1. A spec has only a number
// of dense layers at the start, so the list must be sorted: zeros, then ones.
void ConvertLayers(SpecConversion& c, int64_t layers, Experts* experts) {
  const Setting* written = c.settings.Find("moe_layer_freq");
  if (written == nullptr || written->open) return;
  std::string text = absl::StrJoin(written->values, ",");
  if (text == "1") return;
  if (written->values.size() > 1) text = absl::StrCat("[", text, "]");
  const std::vector<int> has = ReadLayerPattern(text).value_or(std::vector<int>());
  const int64_t dense = std::find(has.begin(), has.end(), 1) - has.begin();
  if (dense == layers || static_cast<int64_t>(has.size()) != layers ||
      !std::is_sorted(has.begin(), has.end())) {
    c.Report("expert_layers", "moe_layer_freq", {layers});
  } else {
    experts->set_dense_layers(dense);
  }
}

// Megatron takes the softmax over the chosen experts unless moe_router_pre_softmax is set. That equals the
// softmax over all experts, renormalized over the chosen ones, which the spec calls `normalized`.
void ConvertScores(SpecConversion& c, Experts* experts) {
  const std::string function = c.settings.Lower("moe_router_score_function", "softmax");
  const bool first = c.settings.Flag("moe_router_pre_softmax");
  if (function == "sigmoid") {
    experts->set_scores(Experts::SCORES_SIGMOID);
    experts->set_normalized(experts->per_token() > 1);
  } else if (function == "softmax") {
    experts->set_normalized(!first);
  } else {
    c.Report("expert_scores", "moe_router_score_function", {function});
  }
}

void ConvertGroups(SpecConversion& c, Experts* experts) {
  const int64_t groups = c.settings.Integer("moe_router_num_groups", 0);
  const int64_t chosen = c.settings.Integer("moe_router_group_topk", 0);
  if (groups <= 0 && chosen <= 0) return;
  if (groups <= 0 || chosen <= 0) {
    c.Report("expert_groups", groups > 0 ? "moe_router_num_groups" : "moe_router_group_topk",
             {"the number of groups and the number of groups per token are set together",
              "write both --moe-router-num-groups and --moe-router-group-topk, or neither"});
    return;
  }
  const int64_t per_token = experts->per_token(), counted = per_token / chosen;
  if (per_token % chosen != 0) {
    c.Report(
        "expert_groups", "moe_router_group_topk",
        {absl::StrCat(per_token, " experts per token are not a multiple of ", chosen, " groups per token"),
         "set --moe-router-group-topk to a divisor of --moe-router-topk"});
    return;
  }
  experts->set_groups(groups);
  experts->set_groups_per_token(chosen);
  if (counted == 1) {
    experts->set_group_scores(Experts::GROUP_SCORES_BEST);
  } else if (counted != 2) {
    c.Report("expert_groups", "moe_router_group_topk",
             {absl::StrCat("selecting groups by their ", counted,
                           " highest scores is not supported, only by 1 or 2"),
              "set --moe-router-group-topk to --moe-router-topk, or to half of it"});
  }
  if (experts->scores() != Experts::SCORES_SIGMOID && experts->normalized()) {
    c.Report("expert_groups", "moe_router_num_groups",
             {"selecting groups by logits is not supported, only by scores",
              "add --moe-router-pre-softmax, or write --moe-router-score-function sigmoid"});
  }
}

void ConvertBalance(SpecConversion& c, Experts* experts) {
  const char* type = "moe_router_load_balancing_type";
  if (const Setting* kinds = c.settings.Find(type); kinds != nullptr && kinds->values.size() > 1) {
    c.Report("expert_balance", type, {"several balancing losses are not supported", "write seq_aux_loss"});
    return;
  }
  const std::string kind = c.settings.Lower(type, "aux_loss");
  const double weight = c.settings.Real("moe_aux_loss_coeff", 0);
  if (kind != "none" && !absl::EndsWith(kind, "aux_loss")) {
    c.Report("expert_balance", type,
             {absl::StrCat("'", kind, "' is not supported"), "write seq_aux_loss, aux_loss or none"});
    return;
  }
  if (kind == "none" || weight == 0) return;
  experts->set_balance_loss(weight);
  // With one sample per micro-batch, aux_loss is already per sample.
  const bool per_sample = kind == "aux_loss" && c.settings.Integer("micro_batch_size", 1) == 1;
  if (kind != "seq_aux_loss" && !per_sample) {
    c.Adjust("expert_balance_by_sample", type, kind == "aux_loss" ? "each micro-batch" : "each global batch",
             "each sample");
  }
  if (experts->selection_bias() || experts->has_groups())
    c.Adjust("expert_balance_of_choices", "moe_aux_loss_coeff", "highest scores", "chosen experts");
}

}  // namespace

std::optional<std::vector<int>> ReadLayerPattern(absl::string_view text) {
  std::vector<int> sum;
  if (!AppendSum(&text, 0, &sum) || !absl::StripAsciiWhitespace(text).empty()) return std::nullopt;
  return sum;
}

void ConvertExperts(SpecConversion* conversion, v1::Llama* llama) {
  SpecConversion& c = *conversion;
  Settings& s = c.settings;
  const int64_t count = s.Integer("num_experts", 0);
  if (count <= 0) return;
  Experts* experts = llama->mutable_experts();
  experts->set_count(count);
  c.Fill("model.llama.experts");
  if (const auto size = s.Integer("moe_shared_expert_intermediate_size"); size.value_or(0) > 0)
    experts->set_shared_intermediate_size(*size);
  ConvertLayers(c, llama->layers(), experts);
  ConvertScores(c, experts);
  ConvertGroups(c, experts);
  if (experts->selection_bias()) experts->set_bias_update_rate(s.Real("moe_router_bias_update_rate", 1e-3));
  ConvertBalance(c, experts);
  const std::string type = s.Lower("moe_router_dtype", "none");
  if (type != "fp32")
    c.Adjust("router_in_fp32", "moe_router_dtype", type == "none" ? "the layer's dtype" : type, "fp32");
  if (s.Flag("moe_router_force_load_balancing"))
    c.Adjust("router_chooses", "moe_router_force_load_balancing", "true", "false");
}

}  // namespace fsdpd
