#include "fsdp/checkpoint/convert/convert_state.h"

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include <cmath>
#include <utility>

#include "base/check.h"
#include "fsdp/checkpoint/format/number_cast.h"
#include "fsdp/checkpoint/names/job_keys.h"

namespace fsdpd {
namespace {

constexpr char kInBuckets[] = "optimizer.distributed.dp_group_idx_";
constexpr const char* kMoments[] = {"exp_avg", "exp_avg_sq", "momentum_buffer"};
constexpr const char* kMains[] = {"param", "fp32_param"};
constexpr double kMostSteps = 1 << 24;  // float32, which torch uses for step counts, is exact up to it.

class Matcher {
 public:
  Matcher(const DcpReader& source, Naming naming, const ParamMatch& match)
      : source_(source), naming_(naming), match_(match) {}

  absl::StatusOr<StateMatch> Match(bool optimizer) {
    found_.counted.resize(match_.params.size());
    MatchMain();
    if (!optimizer) return std::move(found_);
    RefuseBuckets();
    for (const char* moment : kMoments) MatchMoment(moment);
    CheckWhole();
    FSDPD_RETURN_IF_ERROR(ReadSteps());
    return std::move(found_);
  }

 private:
  std::string KeyOf(size_t param, const char* what) const {
    if (naming_ == Naming::kOurs) return OptimizerKey(match_.params[param].ours, what);
    return absl::StrCat(kMegatronState, what, ".", source_.tensors()[match_.tensors[param]].name);
  }

  void RefuseBuckets() {
    const auto refuse = [this](const std::string& name) {
      if (!found_.violations.empty() || !absl::StrContains(name, kInBuckets)) return;
      found_.violations.Add(
          name,
          "optimizer state in the buckets of its run (dp_reshardable or dp_zero_gather_scatter), which only "
          "Megatron-Core can read; save it there with --dist-ckpt-optim-fully-reshardable, or use "
          "--no-optimizer to convert only the parameters");
    };
    for (const StoredTensor& tensor : source_.tensors()) refuse(tensor.name);
    for (const DcpValue& value : source_.index().values) refuse(value.name);
  }

  // The index of a state tensor in the source, or -1. A wrong shape is a violation, reported once per tensor.
  int64_t Find(size_t param, const char* what) {
    const std::string name = KeyOf(param, what);
    const int64_t at = source_.Find(name);
    if (at < 0) return -1;
    const bool is_new = found_.names.insert(name).second;
    const StoredTensor& tensor = source_.tensors()[at];
    const std::vector<int64_t> shape = match_.params[param].TheirShape();
    if (is_new && (tensor.shape != shape || !CanCast(*tensor.type))) {
      found_.violations.Add(name, absl::StrCat("is ", tensor.type->name, " ", ShapeText(tensor.shape),
                                               ", but its parameter has shape ", ShapeText(shape)));
    }
    return at;
  }

  void MatchMoment(const char* moment) {
    std::vector<int64_t> tensors;
    bool any = false;
    for (size_t param = 0; param < match_.params.size(); ++param) {
      tensors.push_back(Find(param, moment));
      any = any || tensors.back() >= 0;
    }
    if (!any) return;
    found_.moments.push_back(moment);
    found_.tensors.push_back(std::move(tensors));
  }

  // A parameter has all moments or, if frozen, none; and moments belong to one optimizer.
  void CheckWhole() {
    const std::string moments = absl::StrJoin(found_.moments, ", ");
    if (!moments.empty() && moments != "exp_avg, exp_avg_sq" && moments != "momentum_buffer") {
      found_.violations.Add("optimizer state",
                            absl::StrCat("has unknown moments ", moments, "; use --no-optimizer to omit it"));
      return;
    }
    std::set<std::string> told;
    for (size_t m = 0; m < found_.moments.size(); ++m) {
      for (size_t param = 0; param < match_.params.size(); ++param) {
        const size_t other = found_.moments.size() - 1 - m;
        if (found_.tensors[m][param] >= 0 || found_.tensors[other][param] < 0) continue;
        const std::string name = KeyOf(param, found_.moments[m].c_str());
        if (told.insert(name).second)
          found_.violations.Add(name, absl::StrCat("is missing, but ", found_.moments[other], " exists"));
      }
    }
  }

  void MatchMain() {
    for (size_t param = 0; param < match_.params.size(); ++param) {
      int64_t main = -1;
      for (const char* what : kMains) {
        if (naming_ != Naming::kOurs && main < 0) main = Find(param, what);
      }
      found_.main.push_back(main);
    }
  }

  // fsdpd and Megatron-FSDP have one count per parameter; Megatron-Core has one for all, in common.pt.
  absl::Status ReadSteps() {
    bool steps_differ = false;  // Reported once, not for hundreds of parameters.
    for (size_t param = 0; naming_ == Naming::kOurs && param < match_.params.size(); ++param) {
      const std::string name = KeyOf(param, kStepKey);
      const int64_t at = source_.Find(name);
      if (at < 0) continue;
      const StoredTensor& tensor = source_.tensors()[at];
      found_.names.insert(name);
      if (tensor.numbers() != 1 || !CanCompare(*tensor.type)) {
        found_.violations.Add(name, "is not a step count");
        continue;
      }
      char number[8];  // Large enough for the widest type.
      FSDPD_RETURN_IF_ERROR(source_.Read(at, number));
      const double steps = NumberAt(*tensor.type, number, 0);
      found_.counted[param] = true;
      if (!(steps >= 0) || steps != std::floor(steps) || steps > kMostSteps) {
        found_.violations.Add(name, "is not a step count");
      } else if (found_.steps.value_or(static_cast<int64_t>(steps)) == static_cast<int64_t>(steps)) {
        found_.steps = static_cast<int64_t>(steps);
      } else if (!steps_differ) {
        steps_differ = true;
        found_.violations.Add(name, absl::StrCat("is ", steps, ", but another parameter's is ", *found_.steps,
                                                 "; a conversion needs one step count for all parameters"));
      }
    }
    return absl::OkStatus();
  }

  const DcpReader& source_;
  const Naming naming_;
  const ParamMatch& match_;
  StateMatch found_;
};

}  // namespace

bool StateMatch::IsTrained(size_t param) const {
  return tensors.empty() ? counted[param] : tensors[0][param] >= 0;
}

absl::StatusOr<StateMatch> MatchState(const DcpReader& source, Naming naming, const ParamMatch& match,
                                      bool optimizer) {
  return Matcher(source, naming, match).Match(optimizer);
}

}  // namespace fsdpd
