#include "fsdp/checkpoint/convert.h"

#include <absl/strings/str_cat.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "base/check.h"
#include "fsdp/checkpoint/dcp_file.h"
#include "fsdp/checkpoint/dcp_store.h"
#include "fsdp/checkpoint/durable_file.h"
#include "fsdp/checkpoint/each_tensor.h"
#include "fsdp/checkpoint/hf_store.h"
#include "fsdp/checkpoint/megatron_files.h"
#include "fsdp/checkpoint/number_cast.h"
#include "fsdp/checkpoint/param_match.h"
#include "fsdp/checkpoint/part_folder.h"
#include "fsdp/checkpoint/tensor_names.h"

namespace fsdpd {
namespace {

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

Naming NamingIn(StoreFormat format) {
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
  const bool only_model = FormatOf(conversion.source) == StoreFormat::kHf;
  ParamMatch match = MatchParams(*source, conversion.model, only_model);
  result.faults = std::move(match.faults);
  if (!result.faults.empty()) return result;
  result.left_out = std::move(match.left_out);
  const Ways ways = {*source, std::move(match.tensors), std::move(match.params),
                     ParamsOf(conversion.model, NamingIn(conversion.to))};
  const std::vector<Target> targets = TargetsOf(ways.to, conversion);
  for (const Target& target : targets) result.bytes += target.bytes();
  result.tensors = CountTensors(targets);
  progress->of_bytes = result.bytes;
  progress->of_tensors = static_cast<int64_t>(targets.size());
  FSDPD_ASSIGN_OR_RETURN(const int64_t iteration, IterationOf(*source));
  FSDPD_RETURN_IF_ERROR(CheckFreeSpace(conversion.target, result.bytes));
  FSDPD_ASSIGN_OR_RETURN(const std::unique_ptr<PartFolder> folder,
                         PartFolder::Create(conversion.target, !conversion.mark_name.empty()));
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
  if (!conversion.mark_name.empty())
    FSDPD_RETURN_IF_ERROR(ReplaceFile(folder->path(), conversion.mark_name, conversion.mark));
  FSDPD_RETURN_IF_ERROR(folder->Commit());
  return result;
}

}  // namespace fsdpd
