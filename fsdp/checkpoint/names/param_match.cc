#include "fsdp/checkpoint/names/param_match.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_split.h>
#include <absl/strings/strip.h>

#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

#include "base/check.h"
#include "fsdp/checkpoint/format/number_cast.h"
#include "fsdp/checkpoint/names/job_keys.h"

namespace fsdpd {
namespace {

// How the source's names relate to those of a naming.
struct Prefix {
  std::string outer;   // Prefix of every name: "model." if a whole training state was saved.
  std::string body;    // BodyPrefix(), if it was omitted.
  std::string before;  // Before the embedding's name: `outer`, and the body's if present.

  std::string NameOf(const std::string& theirs) const {
    return absl::StrCat(outer, absl::StripPrefix(theirs, body));
  }
};

struct Found {
  Naming naming = Naming::kOurs;
  std::vector<NamedParam> params;
  Prefix prefix = {};
  std::string rival = {};  // Prefix::before of an equally good candidate; empty: none.
};

// The prefixes of all names that end like the embedding's.
std::vector<Prefix> PrefixesIn(const TensorReader& source, const std::string& embedding,
                               const std::string& body) {
  std::vector<Prefix> prefixes;
  const absl::string_view end = absl::StripPrefix(embedding, body);
  for (const StoredTensor& tensor : source.tensors()) {
    absl::string_view before = tensor.name;
    if (!absl::ConsumeSuffix(&before, end) || (!before.empty() && before.back() != '.')) continue;
    absl::string_view outer = before;
    const bool with_body = absl::ConsumeSuffix(&outer, body);
    prefixes.push_back({std::string(outer), with_body ? "" : body, std::string(before)});
  }
  return prefixes;
}

// A prefix of only these words is the trained model. Averages of its weights, teachers and frozen references
// have other names.
bool IsOfTheModel(const Prefix& prefix) {
  static constexpr absl::string_view kWords[] = {"app",    "model", "model_state", "model_state_dict",
                                                 "module", "state", "state_dict",  "_orig_mod"};
  for (const absl::string_view word : absl::StrSplit(prefix.outer, '.', absl::SkipEmpty())) {
    if (std::find(std::begin(kWords), std::end(kWords), word) == std::end(kWords)) return false;
  }
  return true;
}

// Chooses among several models in a state: one that is named as the model precedes others, complete or not,
// because loading an average in place of an incomplete model would be a silent error. Among equals, the
// complete one; if there is none, the shortest name, so that what it lacks is reported.
bool Choose(const TensorReader& source, std::vector<Prefix> prefixes, Found* found) {
  if (prefixes.empty()) return false;
  // By length, so that the report does not depend on the order of names.
  std::stable_sort(prefixes.begin(), prefixes.end(),
                   [](const Prefix& a, const Prefix& b) { return a.before.size() < b.before.size(); });
  const auto others = std::stable_partition(prefixes.begin(), prefixes.end(), IsOfTheModel);
  if (others != prefixes.begin()) prefixes.erase(others, prefixes.end());
  const auto is_whole = [&](const Prefix& prefix) {
    return std::all_of(found->params.begin(), found->params.end(), [&](const NamedParam& param) {
      return source.Find(prefix.NameOf(param.theirs)) >= 0;
    });
  };
  const auto parts = std::stable_partition(prefixes.begin(), prefixes.end(), is_whole);
  found->prefix = prefixes[0];
  if (parts - prefixes.begin() > 1) found->rival = prefixes[1].before;
  return true;
}

// Whether any layer tensor has the common name of stacked layers.
bool HasStackedLayers(const TensorReader& source, const Found& found) {
  return std::any_of(found.params.begin(), found.params.end(), [&](const NamedParam& param) {
    return param.layer >= 0 && source.Find(found.prefix.NameOf(param.theirs)) >= 0;
  });
}

// Identified by the embedding, which every model has.
std::optional<Found> FindNaming(const TensorReader& source, const ModelConfig& model) {
  for (const Naming naming : {Naming::kOurs, Naming::kTransformers, Naming::kTorchtitan, Naming::kMegatron,
                              Naming::kMegatronLayers}) {
    Found found = {naming, ParamsOf(model, naming)};
    if (found.params.empty()) continue;
    const std::string& embedding = found.params[0].theirs;
    if (naming == Naming::kOurs) {
      found.prefix.outer = kNativePrefix;
      if (source.Find(found.prefix.NameOf(embedding)) >= 0) return found;
      continue;
    }
    if (!Choose(source, PrefixesIn(source, embedding, BodyPrefix(model, naming)), &found)) continue;
    if (naming == Naming::kMegatron && !HasStackedLayers(source, found)) continue;
    return found;
  }
  return std::nullopt;
}

std::string FirstWord(absl::string_view name) { return std::string(name.substr(0, name.find('.'))); }

// The source tensor of the match's next parameter.
void AddTensor(const TensorReader& source, const std::string& name, const NamedParam& param,
               ParamMatch* match) {
  const int64_t at = source.Find(name);
  match->tensors.push_back(std::max<int64_t>(at, 0));
  if (at < 0) {
    match->violations.Add(name, "is missing");
    return;
  }
  const StoredTensor& tensor = source.tensors()[at];
  if (tensor.shape != param.TheirShape()) {
    match->violations.Add(name, absl::StrCat("wrong shape (got ", ShapeText(tensor.shape), ", want ",
                                             ShapeText(param.TheirShape()), ")"));
  } else if (!CanCast(*tensor.type)) {
    match->violations.Add(
        name, absl::StrCat("wrong dtype (got ", tensor.type->name, ", want a floating-point type)"));
  }
}

// Fills the match: the source tensor of each parameter, violations, and unused tensors.
void MatchFound(const TensorReader& source, const Found& found, const ModelConfig& model, bool only_model,
                ParamMatch* match) {
  std::set<std::string> names, roots;
  for (const NamedParam& param : found.params) {
    const std::string name = found.prefix.NameOf(param.theirs);
    const bool is_new = names.insert(name).second;
    roots.insert(FirstWord(name));
    if (!is_new) {  // Parameters of one tensor report its problems once.
      match->tensors.push_back(std::max<int64_t>(source.Find(name), 0));
      continue;
    }
    AddTensor(source, name, param, match);
  }
  // In other programs' states both names may exist. A native checkpoint has the head's name only if it is
  // untied.
  const std::optional<std::string> tied =
      found.naming == Naming::kOurs ? std::nullopt : TiedName(model, found.naming);
  for (const StoredTensor& tensor : source.tensors()) {
    if (names.count(tensor.name) > 0) continue;
    absl::string_view inner = tensor.name;
    const bool inside = absl::ConsumePrefix(&inner, found.prefix.outer);
    const bool in_model =
        only_model || (inside && (!found.prefix.outer.empty() || roots.count(FirstWord(inner)) > 0));
    if (inside && inner == tied) match->tied_copy = source.Find(tensor.name);
    const bool left_out = IsComputed(inner) || IsOfMoreTokens(model, inner) || inner == tied;
    if (in_model && !left_out) {
      match->violations.Add(tensor.name, "is not in the model");
    } else {
      match->left_out.push_back(tensor.name);
    }
  }
}

// A violation if a second copy of the tied embedding, under the head's name, differs from it in shape, dtype
// or any number. The copy is not loaded, so a head that was trained on its own would be dropped.
absl::Status CheckTiedCopy(const TensorReader& source, ParamMatch* match) {
  if (match->tied_copy < 0) return absl::OkStatus();
  const size_t of_head = static_cast<size_t>(match->tied_copy), of_embedding = match->tensors[0];
  const StoredTensor& head = source.tensors()[of_head];
  const StoredTensor& embedding = source.tensors()[of_embedding];
  bool equal = head.shape == embedding.shape && head.type == embedding.type;
  const int64_t piece = (8 << 20) / embedding.type->bytes;
  std::string left, right;
  for (int64_t begin = 0; equal && begin < embedding.numbers(); begin += piece) {
    const int64_t count = std::min(piece, embedding.numbers() - begin);
    left.resize(count * embedding.type->bytes);
    right.resize(left.size());
    FSDPD_RETURN_IF_ERROR(source.ReadRun(of_embedding, begin, count, left.data()));
    FSDPD_RETURN_IF_ERROR(source.ReadRun(of_head, begin, count, right.data()));
    equal = left == right;
  }
  if (equal) return absl::OkStatus();
  match->violations.Add(head.name, absl::StrCat("differs from ", embedding.name,
                                                ", but the model ties them; set tie_word_embeddings "
                                                "(tied_embeddings in a spec) to false to load both"));
  return absl::OkStatus();
}

}  // namespace

std::optional<Naming> NamingOf(const TensorReader& source, const ModelConfig& model) {
  const std::optional<Found> found = FindNaming(source, model);
  if (!found.has_value()) return std::nullopt;
  return found->naming;
}

ParamMatch MatchAll(const TensorReader& source, std::vector<NamedParam> params) {
  ParamMatch match;
  match.params = std::move(params);
  std::set<std::string> names;
  for (const NamedParam& param : match.params) {
    names.insert(param.theirs);
    AddTensor(source, param.theirs, param, &match);
  }
  for (const StoredTensor& tensor : source.tensors()) {
    if (names.count(tensor.name) == 0) match.violations.Add(tensor.name, "is not among the job's adapters");
  }
  return match;
}

absl::StatusOr<ParamMatch> MatchParams(const TensorReader& source, const ModelConfig& model,
                                       bool only_model) {
  ParamMatch match;
  std::optional<Found> found = FindNaming(source, model);
  if (!found.has_value()) {
    match.violations.Add("embedding", "not found: no tensor has a name of this model's family");
    return match;
  }
  if (!found->rival.empty()) {
    match.violations.Add(absl::StrCat("'", found->prefix.before, "' and '", found->rival, "'"),
                         "ambiguous: each prefix has a whole model; save only the intended one");
    return match;
  }
  MatchFound(source, *found, model, only_model, &match);
  match.params = std::move(found->params);
  if (match.violations.empty()) FSDPD_RETURN_IF_ERROR(CheckTiedCopy(source, &match));
  return match;
}

}  // namespace fsdpd
