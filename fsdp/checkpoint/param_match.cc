#include "fsdp/checkpoint/param_match.h"

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/strip.h>

#include <algorithm>
#include <set>
#include <utility>

#include "fsdp/checkpoint/number_cast.h"

namespace fsdpd {
namespace {

// How the source's names are made of those of a naming.
struct Found {
  Naming naming = Naming::kOurs;
  std::vector<NamedParam> params;
  std::string outer;  // Before every name: "model.", where a whole training state was saved.
  std::string body;   // BodyPrefix(), where it was left out.

  std::string NameOf(const std::string& theirs) const {
    return absl::StrCat(outer, absl::StripPrefix(theirs, body));
  }
};

// The shortest: a state that holds the model holds it once, and what else has such a name has more before it.
std::optional<std::string> ShortestBefore(const TensorReader& source, const std::string& end) {
  std::optional<std::string> shortest;
  for (const StoredTensor& tensor : source.tensors()) {
    absl::string_view before = tensor.name;
    if (!absl::ConsumeSuffix(&before, end) || (!before.empty() && before.back() != '.')) continue;
    if (!shortest.has_value() || before.size() < shortest->size()) shortest = std::string(before);
  }
  return shortest;
}

// Whether any layer's tensor has the name that layers have together.
bool HasStackedLayers(const TensorReader& source, const Found& found) {
  return std::any_of(found.params.begin(), found.params.end(), [&](const NamedParam& param) {
    return param.layer >= 0 && source.Find(found.NameOf(param.theirs)) >= 0;
  });
}

// By the embedding, which every model has.
std::optional<Found> FindNaming(const TensorReader& source, const ModelConfig& model) {
  for (const Naming naming : {Naming::kOurs, Naming::kTransformers, Naming::kTorchtitan, Naming::kMegatron,
                              Naming::kMegatronLayers}) {
    Found found = {naming, ParamsOf(model, naming), "", ""};
    if (found.params.empty()) continue;
    if (naming == Naming::kOurs) {
      found.outer = kNativePrefix;
      if (source.Find(found.NameOf(found.params[0].theirs)) >= 0) return found;
      continue;
    }
    const std::string body = BodyPrefix(model, naming);
    const std::string embedding(absl::StripPrefix(found.params[0].theirs, body));
    const std::optional<std::string> before = ShortestBefore(source, embedding);
    if (!before.has_value()) continue;
    const bool with_body = absl::EndsWith(*before, body);
    found.outer = with_body ? before->substr(0, before->size() - body.size()) : *before;
    found.body = with_body ? "" : body;
    if (naming == Naming::kMegatron && !HasStackedLayers(source, found)) continue;
    return found;
  }
  return std::nullopt;
}

std::string FirstWord(absl::string_view name) { return std::string(name.substr(0, name.find('.'))); }

// Which of the source's tensors each parameter is; what is wrong, and what is left out, into the match.
void MatchFound(const TensorReader& source, const Found& found, const ModelConfig& model, bool only_model,
                ParamMatch* match) {
  std::set<std::string> names, roots;
  for (const NamedParam& param : found.params) {
    const std::string name = found.NameOf(param.theirs);
    const bool is_new = names.insert(name).second;
    roots.insert(FirstWord(name));
    const int64_t at = source.Find(name);
    match->tensors.push_back(std::max<int64_t>(at, 0));
    if (!is_new) continue;  // Of several in one tensor, the first tells what is wrong with it.
    if (at < 0) {
      match->faults.Add(name, "is not there, and the model has it");
      continue;
    }
    const StoredTensor& tensor = source.tensors()[at];
    if (tensor.shape != param.TheirShape()) {
      match->faults.Add(name, absl::StrCat("has the shape ", ShapeText(tensor.shape), ", and in the model ",
                                           ShapeText(param.TheirShape())));
    } else if (!CanCast(*tensor.type)) {
      match->faults.Add(name, absl::StrCat("has numbers of type ", tensor.type->name,
                                           ", and parameters are floating-point numbers"));
    }
  }
  // Of the others' state both names may be there. A native checkpoint has the head's only if it is another.
  const std::optional<std::string> tied =
      found.naming == Naming::kOurs ? std::nullopt : TiedName(model, found.naming);
  for (const StoredTensor& tensor : source.tensors()) {
    if (names.count(tensor.name) > 0) continue;
    absl::string_view inner = tensor.name;
    const bool inside = absl::ConsumePrefix(&inner, found.outer);
    const bool in_model =
        only_model || (inside && (!found.outer.empty() || roots.count(FirstWord(inner)) > 0));
    if (in_model && !IsComputed(inner) && inner != tied) {
      match->faults.Add(tensor.name, "is not in the model");
    } else {
      match->left_out.push_back(tensor.name);
    }
  }
}

}  // namespace

std::optional<Naming> NamingOf(const TensorReader& source, const ModelConfig& model) {
  const std::optional<Found> found = FindNaming(source, model);
  if (!found.has_value()) return std::nullopt;
  return found->naming;
}

ParamMatch MatchParams(const TensorReader& source, const ModelConfig& model, bool only_model) {
  ParamMatch match;
  std::optional<Found> found = FindNaming(source, model);
  if (!found.has_value()) {
    match.faults.Add("embedding", "is not there: none of the names are those of this model's family");
    return match;
  }
  MatchFound(source, *found, model, only_model, &match);
  match.params = std::move(found->params);
  return match;
}

}  // namespace fsdpd
