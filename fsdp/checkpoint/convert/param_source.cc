#include "fsdp/checkpoint/convert/param_source.h"

#include <absl/strings/str_cat.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "fsdp/checkpoint/convert/convert_state.h"
#include "fsdp/checkpoint/dcp/dcp_reader.h"
#include "fsdp/checkpoint/format/number_cast.h"
#include "fsdp/checkpoint/hf/hf_store.h"
#include "fsdp/checkpoint/names/adapter_names.h"

namespace fsdpd {

ParamSource::ParamSource(std::shared_ptr<const TensorReader> reader, ParamMatch match, int64_t head_rows)
    : reader_(std::move(reader)), match_(std::move(match)), head_rows_(head_rows) {
  for (size_t i = 0; i < match_.params.size(); ++i) numbers_.emplace(match_.params[i].ours, i);
}

absl::StatusOr<std::unique_ptr<ParamSource>> ParamSource::Open(const std::string& directory,
                                                               const ModelConfig& model) {
  FSDPD_ASSIGN_OR_RETURN(std::unique_ptr<TensorReader> reader, OpenStore(directory));
  return Of(std::move(reader), model);
}

absl::StatusOr<std::unique_ptr<ParamSource>> ParamSource::OpenAdapters(const std::string& directory,
                                                                       const ModelConfig& model,
                                                                       const LoraConfig& lora) {
  FSDPD_ASSIGN_OR_RETURN(std::unique_ptr<TensorReader> reader, OpenPeftDirectory(directory));
  ParamMatch match = MatchAll(*reader, AdapterParamsOf(model, lora));
  return std::unique_ptr<ParamSource>(new ParamSource(std::move(reader), std::move(match), HeadRows(model)));
}

absl::StatusOr<std::unique_ptr<ParamSource>> ParamSource::Of(std::shared_ptr<const TensorReader> reader,
                                                             const ModelConfig& model) {
  const bool is_hf = dynamic_cast<const DcpReader*>(reader.get()) == nullptr;
  FSDPD_ASSIGN_OR_RETURN(ParamMatch match, MatchParams(*reader, model, is_hf));
  std::unique_ptr<ParamSource> source(new ParamSource(std::move(reader), std::move(match), HeadRows(model)));
  FSDPD_RETURN_IF_ERROR(source->TakeMain(model));
  return source;
}

absl::Status ParamSource::TakeMain(const ModelConfig& model) {
  const auto* dcp = dynamic_cast<const DcpReader*>(reader_.get());
  if (dcp == nullptr || !violations().empty()) return absl::OkStatus();
  const Naming naming = *NamingOf(*reader_, model);
  if (naming != Naming::kMegatron && naming != Naming::kMegatronLayers) return absl::OkStatus();
  FSDPD_ASSIGN_OR_RETURN(const StateMatch state, MatchState(*dcp, naming, match_, /*optimizer=*/false));
  if (!state.violations.empty()) {
    no_main_ = absl::StrCat(state.violations[0].where, ": ", state.violations[0].what);
    return absl::OkStatus();
  }
  for (size_t i = 0; i < state.main.size(); ++i) {
    if (state.main[i] >= 0) match_.tensors[i] = static_cast<size_t>(state.main[i]);
  }
  std::vector<std::string>& left = match_.left_out;
  left.erase(std::remove_if(left.begin(), left.end(),
                            [&](const std::string& name) { return state.names.count(name) > 0; }),
             left.end());
  return absl::OkStatus();
}

const TensorType& ParamSource::TypeOf(const std::string& ours) const {
  const auto found = numbers_.find(ours);
  FSDPD_CHECK(violations().empty() && found != numbers_.end());
  return *reader_->tensors()[match_.tensors[found->second]].type;
}

absl::Status ParamSource::ReadRun(const std::string& ours, int64_t begin, int64_t elements,
                                  float* out) const {
  const auto found = numbers_.find(ours);
  FSDPD_CHECK(violations().empty() && found != numbers_.end());
  // Experts are consecutive.
  const auto& params = match_.params;
  for (size_t param = found->second; param < params.size() && params[param].ours == ours; ++param) {
    const int64_t own = params[param].ours_begin, numbers = params[param].elements();
    const int64_t first = std::max(begin, own), end = std::min(begin + elements, own + numbers);
    if (first < end) FSDPD_RETURN_IF_ERROR(ReadFloats(param, first - own, end - first, out + first - begin));
  }
  return absl::OkStatus();
}

absl::Status ParamSource::ReadFloats(size_t param, int64_t begin, int64_t elements, float* out) const {
  const TensorType& type = *reader_->tensors()[match_.tensors[param]].type;
  std::vector<char> wide;  // For types that are wider than `out`.
  if (type.bytes > static_cast<int64_t>(sizeof(float))) wide.resize(elements * type.bytes);
  char* const numbers = wide.empty() ? reinterpret_cast<char*>(out) : wide.data();
  FSDPD_RETURN_IF_ERROR(ReadNumbers(param, begin, elements, numbers));
  CastNumbers(type, *FindTensorType("float32"), elements, numbers);
  if (!wide.empty()) std::memcpy(out, wide.data(), elements * sizeof(float));
  return absl::OkStatus();
}

absl::Status ParamSource::ReadNumbers(size_t param, int64_t begin, int64_t elements, char* out) const {
  const NamedParam& named = match_.params[param];
  const int64_t width = reader_->tensors()[match_.tensors[param]].type->bytes;
  for (const SharedRun& run : named.runs) {
    const int64_t first = std::max(begin, run.ours), end = std::min(begin + elements, run.ours + run.numbers);
    if (first >= end) continue;
    FSDPD_RETURN_IF_ERROR(reader_->ReadRun(match_.tensors[param], run.theirs + first - run.ours, end - first,
                                           out + (first - begin) * width));
  }
  if (!named.runs.empty()) return absl::OkStatus();
  for (const Rectangle& part : RectanglesOf(named.shape, begin, elements)) {
    FSDPD_RETURN_IF_ERROR(ReadPart(param, part, out));
    out += part.elements() * width;
  }
  return absl::OkStatus();
}

// `part` is in our layout.
absl::Status ParamSource::ReadPart(size_t param, const Rectangle& part, char* out) const {
  const size_t tensor = match_.tensors[param];
  const int64_t width = reader_->tensors()[tensor].type->bytes;
  switch (match_.params[param].rearrangement) {
    case Rearrangement::kNone:
      return reader_->ReadPart(tensor, part, out);
    case Rearrangement::kTransposed: {
      const Rectangle theirs = {{part.offsets[1], part.offsets[0]}, {part.sizes[1], part.sizes[0]}};
      std::vector<char> numbers(part.elements() * width);
      FSDPD_RETURN_IF_ERROR(reader_->ReadPart(tensor, theirs, numbers.data()));
      Rearrange(Rearrangement::kTransposed, /*to_ours=*/true, part.sizes[0], part.sizes[1], head_rows_, width,
                numbers.data(), out);
      return absl::OkStatus();
    }
    case Rearrangement::kPairs:
      for (int64_t row = part.offsets[0]; row < part.offsets[0] + part.sizes[0]; ++row) {
        const Rectangle theirs = {{RowInPairs(row, head_rows_), part.offsets[1]}, {1, part.sizes[1]}};
        FSDPD_RETURN_IF_ERROR(reader_->ReadPart(tensor, theirs, out));
        out += part.sizes[1] * width;
      }
      return absl::OkStatus();
  }
  return absl::OkStatus();
}

}  // namespace fsdpd
