#include "fsdp/plan/verify/verify_stages.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "base/check.h"
#include "fsdp/plan/verify/verify_case.h"

namespace fsdpd {
namespace {

// Maximum number of instructions that a deadlock message lists.
constexpr size_t kMaxNamed = 8;

class StagesCheck {
 public:
  StagesCheck(const std::vector<StageProgram>& stages, bool load_kernels)
      : stages_(stages), load_kernels_(load_kernels) {
    for (const StageProgram& stage : stages) {
      first_.push_back(static_cast<int>(stage_of_.size()));
      stage_of_.resize(stage_of_.size() + stage.program->instructions.size(),
                       static_cast<int>(first_.size()) - 1);
    }
    for (size_t n = 0; n < stage_of_.size(); ++n) meets_.push_back(static_cast<int>(n));
  }

  absl::Status Run() {
    for (size_t s = 0; s < stages_.size(); ++s) {
      const StagePlace& place = stages_[s].layout->stage;
      if (place.number == static_cast<int>(s) && place.count == static_cast<int>(stages_.size()) &&
          place.runs.size() == stages_[0].layout->stage.runs.size())
        continue;
      return RuleError(13, "stage ", s, " of ", stages_.size(), " is compiled as stage ", place.number,
                       " of ", place.count, ", with ", place.runs.size(), " runs");
    }
    const auto count = static_cast<int>(stages_.size());
    for (int s = 0; s < count; ++s) {
      FSDPD_RETURN_IF_ERROR(Match(s, (s + 1) % count));
      if (count > 2) FSDPD_RETURN_IF_ERROR(Match((s + 1) % count, s));
      if (s > 0) FSDPD_RETURN_IF_ERROR(MatchWorld(s));
    }
    return CheckCircles();
  }

 private:
  const Instruction& At(int node) const {
    return stages_[stage_of_[node]].program->instructions[node - first_[stage_of_[node]]];
  }
  std::string Name(int node) const {
    const int s = stage_of_[node];
    return absl::StrCat("stage ", s, "'s ",
                        Describe(*stages_[s].program, *stages_[s].layout, node - first_[s]));
  }

  template <typename Is>
  std::vector<int> Find(int stage, const Is& is) const {
    std::vector<int> found;
    const std::vector<Instruction>& all = stages_[stage].program->instructions;
    for (size_t i = 0; i < all.size(); ++i) {
      if (is(all[i])) found.push_back(first_[stage] + static_cast<int>(i));
    }
    return found;
  }

  // The transfer's run in the model, and the run it goes to or comes from.
  int RunOf(int node) const {
    const StagePlace& stage = stages_[stage_of_[node]].layout->stage;
    size_t run = 0;
    while (run + 1 < stage.runs.size() && stage.runs[run + 1].begin <= At(node).unit) ++run;
    return static_cast<int>(run) * stage.count + stage.number;
  }
  int OtherRunOf(int node) const {
    const bool forward = At(node).op == Op::kSend || At(node).op == Op::kReceiveGrad;
    return RunOf(node) + (forward ? 1 : -1);
  }

  bool IsTiedReplica(int node) const {
    return At(node).op == Op::kSendTiedGrad || At(node).op == Op::kReceiveTiedGrad;
  }
  // The peer stage. Tied-embedding replicas are exchanged between the first and the last stage.
  int OtherStageOf(int node) const {
    const auto count = static_cast<int>(stages_.size());
    if (IsTiedReplica(node)) return stage_of_[node] == 0 ? count - 1 : 0;
    return (OtherRunOf(node) + count) % count;
  }
  int64_t TiedElements(int node) const {
    return stages_[stage_of_[node]].layout->buckets[At(node).bucket].main_elements;
  }
  bool Meet(int sent, int received) const {
    if (IsTiedReplica(sent) || IsTiedReplica(received))
      return IsTiedReplica(sent) && IsTiedReplica(received) && TiedElements(sent) == TiedElements(received);
    return (At(sent).op == Op::kSend) == (At(received).op == Op::kReceive) &&
           OtherRunOf(sent) == RunOf(received) && At(sent).micro_batch == At(received).micro_batch;
  }

  // The sends of a stage to another, or its receives from it.
  std::vector<int> StageTransfers(int stage, bool sends, int other) const {
    std::vector<int> found = Find(stage, [sends](const Instruction& i) {
      return sends ? i.op == Op::kSend || i.op == Op::kSendGrad || i.op == Op::kSendTiedGrad
                   : i.op == Op::kReceive || i.op == Op::kReceiveGrad || i.op == Op::kReceiveTiedGrad;
    });
    found.erase(
        std::remove_if(found.begin(), found.end(), [&](int node) { return OtherStageOf(node) != other; }),
        found.end());
    return found;
  }

  // Rule 13 for all transfers from one stage to another.
  absl::Status Match(int from, int to) {
    const StagePlace &a = stages_[from].layout->stage, &b = stages_[to].layout->stage;
    const std::vector<int> sent = StageTransfers(from, true, to), received = StageTransfers(to, false, from);
    for (size_t k = 0; k < std::min(sent.size(), received.size()); ++k) {
      if (!Meet(sent[k], received[k])) return RuleError(13, Name(sent[k]), " meets ", Name(received[k]));
      if (a.hidden_elements != b.hidden_elements || a.hidden_type != b.hidden_type)
        return RuleError(13, Name(sent[k]), " sends ", a.hidden_elements, " ", NameOf(a.hidden_type),
                         ", and ", Name(received[k]), " expects ", b.hidden_elements, " ",
                         NameOf(b.hidden_type));
      meets_[sent[k]] = received[k];
      meets_[received[k]] = sent[k];
    }
    if (sent.size() > received.size())
      return RuleError(13, Name(sent[received.size()]), " is never received");
    if (sent.size() < received.size())
      return RuleError(13, "there is no send for ", Name(received[sent.size()]));
    return absl::OkStatus();
  }

  // Collectives over all ranks: each is paired with its counterpart in stage 0.
  absl::Status MatchWorld(int stage) {
    const auto of_all = [](const Instruction& i) { return i.group == Group::kWorld; };
    const std::vector<int> first = Find(0, of_all), own = Find(stage, of_all);
    for (size_t k = 0; k < std::max(first.size(), own.size()); ++k) {
      if (k < first.size() && k < own.size() && At(first[k]).op == At(own[k]).op) {
        world_.emplace_back(first[k], own[k]);
        continue;
      }
      const int lone = k < own.size() ? own[k] : first[k];
      return RuleError(13, Name(lone), " is a collective over all ranks that some stages do not join");
    }
    return absl::OkStatus();
  }

  // Rule 14: paired instructions are one node of the graph; `one_` maps each to its representative.
  absl::Status CheckCircles() {
    const auto count = static_cast<int>(stage_of_.size());
    one_.resize(count);
    for (int n = 0; n < count; ++n) one_[n] = std::min(n, meets_[n]);
    for (const auto& [first, own] : world_) one_[own] = one_[first];
    before_.resize(count);
    std::vector<std::vector<int>> behind(count);
    const auto wait = [&](int node, int other) {
      before_[one_[node]].push_back(one_[other]);
      behind[one_[other]].push_back(one_[node]);
    };
    for (const int first : first_) AddWaits(first, wait);
    std::vector<int> left(count), ready;
    for (int n = 0; n < count; ++n) {
      left[n] = static_cast<int>(before_[n].size());
      if (left[n] == 0) ready.push_back(n);
    }
    runs_.assign(count, false);
    while (!ready.empty()) {
      const int n = ready.back();
      ready.pop_back();
      runs_[n] = true;
      for (const int next : behind[n]) {
        if (--left[next] == 0) ready.push_back(next);
      }
    }
    for (int n = 0; n < count; ++n) {
      if (!runs_[n]) return Circle(n);
    }
    return absl::OkStatus();
  }

  // Edges of a stage's instructions: lane order, dependencies, compute listed before, and with lazy kernel
  // loading everything listed before.
  template <typename Wait>
  void AddWaits(int first, const Wait& wait) const {
    constexpr auto kCompute = static_cast<size_t>(LaneId::kCompute);
    const auto count = static_cast<int>(stages_[stage_of_[first]].program->instructions.size());
    std::array<int, kLanes> last{};
    last.fill(-1);
    for (int node = first; node < first + count; ++node) {
      for (const int other : At(node).after) wait(node, first + other);
      const auto lane = static_cast<size_t>(At(node).lane);
      if (last[lane] >= 0) wait(node, last[lane]);
      const bool crosses = At(node).lane == LaneId::kSend || At(node).lane == LaneId::kReceive;
      const bool loads = load_kernels_ && !crosses;
      for (size_t other = 0; other < kLanes; ++other) {
        if (other != lane && last[other] >= 0 && (loads || other == kCompute)) wait(node, last[other]);
      }
      last[lane] = node;
    }
  }

  // Follows unfinished instructions to what they wait for until one repeats, which yields a cycle.
  absl::Status Circle(int node) const {
    std::vector<int> path;
    while (std::find(path.begin(), path.end(), node) == path.end()) {
      path.push_back(node);
      const auto stuck = [this](int other) { return !runs_[other]; };
      const auto next = std::find_if(before_[node].begin(), before_[node].end(), stuck);
      FSDPD_CHECK(next != before_[node].end());
      node = *next;
    }
    path.erase(path.begin(), std::find(path.begin(), path.end(), node));
    std::vector<std::string> names;
    for (const int each : path) {
      if (names.size() < kMaxNamed) names.push_back(Name(each));
    }
    if (path.size() > kMaxNamed) names.push_back("...");
    return RuleError(14, "deadlock: ", absl::StrJoin(names, ", which waits for "));
  }

  const std::vector<StageProgram>& stages_;
  const bool load_kernels_;
  std::vector<int> first_;     // By stage: global index of its first instruction.
  std::vector<int> stage_of_;  // By global index, like the following.
  std::vector<int> meets_;     // Counterpart, or itself.
  std::vector<std::pair<int, int>> world_;
  std::vector<int> one_;
  std::vector<std::vector<int>> before_;
  std::vector<bool> runs_;
};

}  // namespace

absl::Status VerifyStages(const std::vector<StageProgram>& stages, bool load_kernels) {
  return StagesCheck(stages, load_kernels).Run();
}

}  // namespace fsdpd
