#include "fsdp/checkpoint/convert.h"

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/strip.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "base/check.h"
#include "fsdp/checkpoint/dcp_file.h"
#include "fsdp/checkpoint/dcp_store.h"
#include "fsdp/checkpoint/each_tensor.h"
#include "fsdp/checkpoint/hf_store.h"
#include "fsdp/checkpoint/megatron_files.h"
#include "fsdp/checkpoint/number_cast.h"
#include "fsdp/checkpoint/part_folder.h"
#include "fsdp/checkpoint/tensor_names.h"

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

// Which of the source's tensors each parameter is; what is wrong, and what is left out, into the result.
std::vector<size_t> MatchParams(const TensorReader& source, const Found& found, const ModelConfig& model,
                                bool only_model, ConversionResult* result) {
  std::vector<size_t> tensors;
  std::set<std::string> names, roots;
  for (const NamedParam& param : found.params) {
    const std::string name = found.NameOf(param.theirs);
    const bool is_new = names.insert(name).second;
    roots.insert(FirstWord(name));
    const int64_t at = source.Find(name);
    tensors.push_back(std::max<int64_t>(at, 0));
    if (!is_new) continue;  // Of several in one tensor, the first tells what is wrong with it.
    if (at < 0) {
      result->faults.Add(name, "is not there, and the model has it");
      continue;
    }
    const StoredTensor& tensor = source.tensors()[at];
    if (tensor.shape != param.TheirShape()) {
      result->faults.Add(name, absl::StrCat("has the shape ", ShapeText(tensor.shape), ", and in the model ",
                                            ShapeText(param.TheirShape())));
    } else if (!CanCast(*tensor.type)) {
      result->faults.Add(name, absl::StrCat("has numbers of type ", tensor.type->name,
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
      result->faults.Add(tensor.name, "is not in the model");
    } else {
      result->left_out.push_back(tensor.name);
    }
  }
  return tensors;
}

// What is written at once: a tensor, or the part of one that is of one layer, with all parameters in it.
struct Target {
  DcpPiece piece;
  std::vector<size_t> params;
  int64_t begin = 0;  // The piece's first number, in the flattened tensor.

  int64_t bytes() const { return piece.at.elements() * piece.type->bytes; }
};

Target TargetOf(const NamedParam& param, const Conversion& conversion) {
  Target target;
  target.piece.name =
      conversion.to == StoreFormat::kDcp ? absl::StrCat(kNativePrefix, param.ours) : param.theirs;
  target.piece.type = conversion.type;
  target.piece.shape = param.TheirShape();
  target.piece.at = {std::vector<int64_t>(target.piece.shape.size()), target.piece.shape};
  if (param.layer >= 0) {
    target.piece.at.offsets[0] = param.layer;
    target.piece.at.sizes[0] = 1;
    target.begin = param.layer * target.piece.at.elements();
  }
  return target;
}

std::vector<Target> TargetsOf(const std::vector<NamedParam>& params, const Conversion& conversion) {
  std::vector<Target> targets;
  std::map<std::pair<std::string, int64_t>, size_t> numbers;
  for (size_t i = 0; i < params.size(); ++i) {
    Target target = TargetOf(params[i], conversion);
    const auto [found, is_new] =
        numbers.emplace(std::make_pair(target.piece.name, params[i].layer), targets.size());
    if (is_new) targets.push_back(std::move(target));
    targets[found->second].params.push_back(i);
  }
  return targets;
}

// One tensor on its way: read, rounded, turned.
class Passage {
 public:
  Passage(const TensorReader& source, const TensorType& type, int64_t head_rows)
      : source_(source), type_(type), head_rows_(head_rows) {}

  // `from` and `to`: the same parameter in both namings. The numbers, in its order where it is a part of a
  // tensor; until the next call.
  absl::StatusOr<const char*> Bring(size_t tensor, const NamedParam& from, const NamedParam& to) {
    const StoredTensor& stored = source_.tensors()[tensor];
    int64_t numbers = 1;
    for (const int64_t size : from.shape) numbers *= size;
    numbers_.reset(new char[numbers * std::max(stored.type->bytes, type_.bytes)]);
    if (from.runs.empty()) FSDPD_RETURN_IF_ERROR(source_.Read(tensor, numbers_.get()));
    for (const SharedRun& run : from.runs) {
      FSDPD_RETURN_IF_ERROR(
          source_.ReadRun(tensor, run.theirs, run.numbers, numbers_.get() + run.ours * stored.type->bytes));
    }
    overflowed_ += CastNumbers(*stored.type, type_, numbers, numbers_.get());
    if (from.turn != to.turn) {
      const int64_t rows = from.shape[0], columns = numbers / rows;
      Turned(numbers, from.turn, TurnToOurs, rows, columns);
      Turned(numbers, to.turn, TurnToTheirs, rows, columns);
    }
    return numbers_.get();
  }

  int64_t overflowed() const { return overflowed_; }

 private:
  template <typename Function>
  void Turned(int64_t numbers, Turn turn, Function function, int64_t rows, int64_t columns) {
    if (turn == Turn::kNone) return;
    std::unique_ptr<char[]> out(new char[numbers * type_.bytes]);
    function(turn, rows, columns, head_rows_, type_.bytes, numbers_.get(), out.get());
    numbers_ = std::move(out);
  }

  const TensorReader& source_;
  const TensorType& type_;
  const int64_t head_rows_;
  std::unique_ptr<char[]> numbers_;
  int64_t overflowed_ = 0;
};

absl::StatusOr<std::unique_ptr<TensorWriter>> MakeWriter(const Conversion& conversion,
                                                         const std::string& folder,
                                                         const std::vector<Target>& targets) {
  if (conversion.to == StoreFormat::kHf) {
    std::vector<StoredTensor> tensors;
    for (const Target& target : targets) {
      tensors.push_back({target.piece.name, target.piece.type, target.piece.shape, target.bytes()});
    }
    return MakeHfWriter(folder, tensors, conversion.file_bytes, conversion.config);
  }
  std::vector<DcpPiece> pieces;
  for (const Target& target : targets) pieces.push_back(target.piece);
  return MakeDcpWriter(folder, pieces, conversion.file_bytes);
}

Naming NamingOf(StoreFormat format) {
  switch (format) {
    case StoreFormat::kDcp:
      return Naming::kOurs;
    case StoreFormat::kHf:
      return Naming::kTransformers;
    case StoreFormat::kTorchDist:
      return Naming::kMegatron;
  }
  return Naming::kOurs;
}

// After which step the source was written; 0 where it does not say.
absl::StatusOr<int64_t> IterationOf(const TensorReader& source) {
  const auto* dcp = dynamic_cast<const DcpTensorReader*>(&source);
  const DcpValue* value = dcp == nullptr ? nullptr : dcp->dcp().FindValue("iteration");
  if (value == nullptr) return 0;
  FSDPD_ASSIGN_OR_RETURN(const Pickle pickle, dcp->dcp().ReadValue(*value));
  return pickle.root().kind == PickleKind::kInt ? pickle.root().integer : 0;
}

// One conversion's ways: each parameter in both namings, by number.
struct Ways {
  const TensorReader& source;
  std::vector<size_t> tensors;  // Of the source.
  std::vector<NamedParam> from, to;
};

absl::Status Carry(const Ways& ways, const Target& target, Passage* passage, TensorWriter* writer,
                   size_t number) {
  const size_t first = target.params[0];
  if (ways.to[first].runs.empty()) {
    FSDPD_ASSIGN_OR_RETURN(const char* numbers,
                           passage->Bring(ways.tensors[first], ways.from[first], ways.to[first]));
    return writer->Write(number, numbers);
  }
  std::unique_ptr<char[]> all(new char[target.bytes()]);
  const int64_t width = target.piece.type->bytes;
  for (const size_t param : target.params) {
    FSDPD_ASSIGN_OR_RETURN(const char* numbers,
                           passage->Bring(ways.tensors[param], ways.from[param], ways.to[param]));
    for (const SharedRun& run : ways.to[param].runs) {
      std::memcpy(all.get() + (run.theirs - target.begin) * width, numbers + run.ours * width,
                  run.numbers * width);
    }
  }
  return writer->Write(number, all.get());
}

int64_t CountTensors(const std::vector<Target>& targets) {
  std::set<std::string> names;
  for (const Target& target : targets) names.insert(target.piece.name);
  return static_cast<int64_t>(names.size());
}

}  // namespace

absl::StatusOr<ConversionResult> Convert(const Conversion& conversion, int threads,
                                         const std::function<bool()>& stopped, ConversionProgress* progress) {
  FSDPD_CHECK(CanCast(*conversion.type));
  FSDPD_ASSIGN_OR_RETURN(const std::unique_ptr<TensorReader> source, OpenStore(conversion.source));
  ConversionResult result;
  const std::optional<Found> found = FindNaming(*source, conversion.model);
  if (!found.has_value()) {
    result.faults.Add("embedding", "is not there: none of the names are those of this model's family");
    return result;
  }
  const bool only_model = FormatOf(conversion.source) == StoreFormat::kHf;
  const Ways ways = {*source, MatchParams(*source, *found, conversion.model, only_model, &result),
                     found->params, ParamsOf(conversion.model, NamingOf(conversion.to))};
  if (!result.faults.empty()) return result;
  const std::vector<Target> targets = TargetsOf(ways.to, conversion);
  for (const Target& target : targets) result.bytes += target.bytes();
  result.tensors = CountTensors(targets);
  progress->of_bytes = result.bytes;
  progress->of_tensors = static_cast<int64_t>(targets.size());
  FSDPD_ASSIGN_OR_RETURN(const int64_t iteration, IterationOf(*source));
  FSDPD_RETURN_IF_ERROR(CheckFreeSpace(conversion.target, result.bytes));
  FSDPD_ASSIGN_OR_RETURN(const std::unique_ptr<PartFolder> folder, PartFolder::Create(conversion.target));
  FSDPD_ASSIGN_OR_RETURN(std::unique_ptr<TensorWriter> writer,
                         MakeWriter(conversion, folder->path(), targets));
  std::atomic<int64_t> overflowed = 0;
  FSDPD_RETURN_IF_ERROR(ForEachTensor(targets.size(), threads, stopped, [&](size_t i) -> absl::Status {
    Passage passage(*source, *conversion.type, HeadRows(conversion.model));
    FSDPD_RETURN_IF_ERROR(Carry(ways, targets[i], &passage, writer.get(), i));
    overflowed += passage.overflowed();
    progress->bytes += targets[i].bytes();
    ++progress->tensors;
    return absl::OkStatus();
  }));
  FSDPD_RETURN_IF_ERROR(writer->Finish());
  if (conversion.to == StoreFormat::kTorchDist) {
    FSDPD_RETURN_IF_ERROR(WriteMegatronFiles(folder->path(), iteration));
  }
  result.files = writer->files();
  result.overflowed = overflowed;
  writer.reset();
  FSDPD_RETURN_IF_ERROR(folder->Commit());
  return result;
}

}  // namespace fsdpd
