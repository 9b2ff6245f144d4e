#include "fsdp/checkpoint/convert.h"

#include <absl/strings/str_cat.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "base/check.h"
#include "fsdp/checkpoint/dcp_store.h"
#include "fsdp/checkpoint/durable_file.h"
#include "fsdp/checkpoint/each_tensor.h"
#include "fsdp/checkpoint/hf_store.h"
#include "fsdp/checkpoint/number_cast.h"
#include "fsdp/checkpoint/param_match.h"
#include "fsdp/checkpoint/part_folder.h"
#include "fsdp/checkpoint/tensor_names.h"

namespace fsdpd {
namespace {

std::vector<StoredTensor> Targets(const std::vector<NamedParam>& params, const Conversion& conversion) {
  std::vector<StoredTensor> targets;
  for (const NamedParam& param : params) {
    StoredTensor target = {param.theirs, conversion.type, param.TheirShape(), conversion.type->bytes};
    if (conversion.to == StoreFormat::kDcp) target.name = absl::StrCat(kNativePrefix, param.ours);
    for (const int64_t size : param.shape) target.bytes *= size;
    targets.push_back(std::move(target));
  }
  return targets;
}

// One tensor on its way: read, rounded, turned.
class Passage {
 public:
  Passage(const TensorReader& source, const TensorType& type, int64_t head_rows)
      : source_(source), type_(type), head_rows_(head_rows) {}

  // `from` and `to`: the same parameter in both namings. The numbers, until the next call.
  absl::StatusOr<const char*> Bring(size_t tensor, const NamedParam& from, const NamedParam& to) {
    const StoredTensor& stored = source_.tensors()[tensor];
    const int64_t numbers = stored.numbers();
    numbers_.reset(new char[numbers * std::max(stored.type->bytes, type_.bytes)]);
    FSDPD_RETURN_IF_ERROR(source_.Read(tensor, numbers_.get()));
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
                                                         const std::vector<StoredTensor>& targets) {
  return conversion.to == StoreFormat::kDcp
             ? MakeDcpWriter(folder, targets, conversion.file_bytes)
             : MakeHfWriter(folder, targets, conversion.file_bytes, conversion.config);
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
  const std::vector<NamedParam> params =
      ParamsOf(conversion.model, conversion.to == StoreFormat::kDcp ? Naming::kOurs : Naming::kTransformers);
  const std::vector<StoredTensor> targets = Targets(params, conversion);
  for (const StoredTensor& target : targets) result.bytes += target.bytes;
  result.tensors = static_cast<int64_t>(targets.size());
  progress->of_bytes = result.bytes;
  progress->of_tensors = result.tensors;
  FSDPD_RETURN_IF_ERROR(CheckFreeSpace(conversion.target, result.bytes));
  FSDPD_ASSIGN_OR_RETURN(const std::unique_ptr<PartFolder> folder,
                         PartFolder::Create(conversion.target, !conversion.mark_name.empty()));
  FSDPD_ASSIGN_OR_RETURN(std::unique_ptr<TensorWriter> writer,
                         MakeWriter(conversion, folder->path(), targets));
  std::atomic<int64_t> overflowed = 0;
  FSDPD_RETURN_IF_ERROR(ForEachTensor(targets.size(), threads, stopped, [&](size_t i) -> absl::Status {
    Passage passage(*source, *conversion.type, HeadRows(conversion.model));
    FSDPD_ASSIGN_OR_RETURN(const char* numbers, passage.Bring(match.tensors[i], match.params[i], params[i]));
    FSDPD_RETURN_IF_ERROR(writer->Write(i, numbers));
    overflowed += passage.overflowed();
    progress->bytes += targets[i].bytes;
    ++progress->tensors;
    return absl::OkStatus();
  }));
  FSDPD_RETURN_IF_ERROR(writer->Finish());
  result.files = writer->files();
  result.overflowed = overflowed;
  writer.reset();
  if (!conversion.mark_name.empty())
    FSDPD_RETURN_IF_ERROR(ReplaceFile(folder->path(), conversion.mark_name, conversion.mark));
  FSDPD_RETURN_IF_ERROR(folder->Commit());
  return result;
}

}  // namespace fsdpd
