#include "fsdp/checkpoint/convert/compare.h"

#include <absl/strings/str_cat.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <set>
#include <utility>

#include "base/check.h"
#include "base/parallel_for.h"
#include "fsdp/checkpoint/convert/open_store.h"
#include "fsdp/checkpoint/convert/param_source.h"
#include "fsdp/checkpoint/dcp/dcp_index.h"
#include "fsdp/checkpoint/dcp/dcp_reader.h"
#include "fsdp/checkpoint/format/number_cast.h"
#include "fsdp/checkpoint/names/adapter_names.h"
#include "fsdp/checkpoint/names/job_keys.h"

namespace fsdpd {
namespace {

constexpr int64_t kChunkElements = 1 << 20;

std::string TextOf(const StoredTensor& tensor) {
  return absl::StrCat(tensor.type->name, " ", ShapeText(tensor.shape));
}

// Index of a name on each side; -1: not a tensor there.
struct Pair {
  int64_t first = -1, second = -1;
  std::string first_value, second_value;
};

using Pairs = std::map<std::string, Pair>;

void AddTensors(const TensorReader& reader, bool is_first, Pairs* pairs) {
  for (size_t i = 0; i < reader.tensors().size(); ++i) {
    Pair& pair = (*pairs)[reader.tensors()[i].name];
    (is_first ? pair.first : pair.second) = static_cast<int64_t>(i);
  }
}

absl::Status AddSide(const TensorReader& reader, bool is_first, Pairs* pairs) {
  AddTensors(reader, is_first, pairs);
  const auto* dcp = dynamic_cast<const DcpReader*>(&reader);
  if (dcp == nullptr) return absl::OkStatus();
  for (const DcpValue& value : dcp->index().values) {
    const absl::StatusOr<Pickle> pickle = dcp->ReadValue(value);
    if (!pickle.ok() && !absl::IsUnimplemented(pickle.status())) return pickle.status();
    Pair& pair = (*pairs)[value.name];
    (is_first ? pair.first_value : pair.second_value) =
        pickle.ok() ? DescribePickled(pickle->root()) : "not read";
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<char[]>> Numbers(const TensorReader& reader, int64_t tensor) {
  std::unique_ptr<char[]> numbers(new char[reader.tensors()[tensor].bytes]);
  FSDPD_RETURN_IF_ERROR(reader.Read(tensor, numbers.get()));
  return numbers;
}

// Accounts for one pair of elements.
void CountPair(double x, double y, double* largest, int64_t* numbers) {
  if (x == y || (std::isnan(x) && std::isnan(y))) return;
  const double apart = std::abs(x - y);
  *largest = std::isnan(apart) ? std::numeric_limits<double>::infinity() : std::max(*largest, apart);
  ++*numbers;
}

void CompareNumbers(const StoredTensor& a, const char* first, const StoredTensor& b, const char* second,
                    TensorDifference* difference) {
  double largest = 0;
  for (int64_t i = 0; i < a.numbers(); ++i) {
    CountPair(NumberAt(*a.type, first, i), NumberAt(*b.type, second, i), &largest, &difference->numbers);
  }
  difference->largest = largest;
}

absl::Status Compare(const TensorReader& first, const TensorReader& second, const Pair& pair,
                     TensorDifference* difference) {
  const StoredTensor* a = pair.first < 0 ? nullptr : &first.tensors()[pair.first];
  const StoredTensor* b = pair.second < 0 ? nullptr : &second.tensors()[pair.second];
  difference->first = a == nullptr ? pair.first_value : TextOf(*a);
  difference->second = b == nullptr ? pair.second_value : TextOf(*b);
  if (a == nullptr || b == nullptr || a->shape != b->shape) return absl::OkStatus();
  const bool same_type = a->type == b->type;
  if (!same_type && (!CanCompare(*a->type) || !CanCompare(*b->type))) return absl::OkStatus();
  FSDPD_ASSIGN_OR_RETURN(const std::unique_ptr<char[]> x, Numbers(first, pair.first));
  FSDPD_ASSIGN_OR_RETURN(const std::unique_ptr<char[]> y, Numbers(second, pair.second));
  if (same_type && std::memcmp(x.get(), y.get(), a->bytes) == 0) return absl::OkStatus();
  if (CanCompare(*a->type)) {
    CompareNumbers(*a, x.get(), *b, y.get(), difference);
  } else {
    difference->numbers = -1;
  }
  return absl::OkStatus();
}

void Divide(std::vector<TensorDifference> found, Comparison* comparison) {
  for (TensorDifference& difference : found) {
    const bool is_described_alike = comparison->of_parameters || difference.first == difference.second;
    if (is_described_alike && difference.numbers == 0) {
      ++comparison->equal;
    } else {
      comparison->differences.push_back(std::move(difference));
    }
  }
}

// ---- Comparison by parameter, for different formats.

struct Sources {
  std::unique_ptr<ParamSource> first, second;
};

// Null if the names are not those of the model, or equal on both sides; `why` receives what is missing.
absl::StatusOr<Sources> SourcesOf(const StoreToCompare& a, const StoreToCompare& b, const ModelConfig& model,
                                  std::string* why) {
  const std::optional<Naming> naming_a = NamingOf(*a.reader, model), naming_b = NamingOf(*b.reader, model);
  Sources sources;
  if (!naming_a.has_value() || !naming_b.has_value() || naming_a == naming_b) return sources;
  FSDPD_ASSIGN_OR_RETURN(sources.first, ParamSource::Of(a.reader, model));
  FSDPD_ASSIGN_OR_RETURN(sources.second, ParamSource::Of(b.reader, model));
  for (const auto& [path, source] : {std::make_pair(&a.directory, sources.first.get()),
                                     std::make_pair(&b.directory, sources.second.get())}) {
    if (source->violations().empty()) continue;
    const DcpViolation& violation = source->violations()[0];
    *why = absl::StrCat(*path, ": ", violation.where, ": ", violation.what);
    return Sources();
  }
  return sources;
}

absl::Status CompareParam(const Sources& sources, const NamedParam& param, TensorDifference* difference) {
  const std::vector<int64_t> shape = param.TheirShape();  // For experts, of all of them.
  const int64_t elements = Rectangle{{}, shape}.elements();
  std::vector<float> x(std::min(elements, kChunkElements)), y(x.size());
  double largest = 0;
  for (int64_t begin = 0; begin < elements; begin += kChunkElements) {
    const int64_t count = std::min(kChunkElements, elements - begin);
    FSDPD_RETURN_IF_ERROR(sources.first->ReadRun(param.ours, begin, count, x.data()));
    FSDPD_RETURN_IF_ERROR(sources.second->ReadRun(param.ours, begin, count, y.data()));
    for (int64_t i = 0; i < count; ++i) CountPair(x[i], y[i], &largest, &difference->numbers);
  }
  difference->largest = largest;
  difference->name = param.ours;
  const auto shown = [&](const ParamSource& source) {
    return absl::StrCat(source.TypeOf(param.ours).name, " ", ShapeText(shape));
  };
  difference->first = shown(*sources.first);
  difference->second = shown(*sources.second);
  return absl::OkStatus();
}

// With the entries that are not tensors.
std::vector<std::string> WithValues(std::vector<std::string> names, const TensorReader& reader) {
  const auto* dcp = dynamic_cast<const DcpReader*>(&reader);
  if (dcp == nullptr) return names;
  for (const DcpValue& value : dcp->index().values) names.push_back(value.name);
  return names;
}

absl::StatusOr<Comparison> CompareParams(const Sources& sources, const TensorReader& a, const TensorReader& b,
                                         const ModelConfig& model, int threads,
                                         const std::function<bool()>& stopped) {
  std::vector<NamedParam> params = ParamsOf(model, Naming::kOurs);
  params.erase(std::remove_if(params.begin(), params.end(),
                              [](const NamedParam& param) { return param.ours_begin > 0; }),
               params.end());
  std::vector<TensorDifference> found(params.size());
  FSDPD_RETURN_IF_ERROR(ParallelFor(params.size(), threads, stopped,
                                    [&](size_t i) { return CompareParam(sources, params[i], &found[i]); }));
  Comparison comparison;
  comparison.of_parameters = true;
  comparison.left_out_first = WithValues(sources.first->left_out(), a);
  comparison.left_out_second = WithValues(sources.second->left_out(), b);
  Divide(std::move(found), &comparison);
  return comparison;
}

// ---- Comparison of LoRA adapters: of PEFT with those of a job.

// By our name, in the order of the model. Empty if the names are equal on both sides.
std::vector<std::pair<std::string, Pair>> AdaptersOf(const TensorReader& a, const TensorReader& b,
                                                     const ModelConfig& model) {
  if (!std::holds_alternative<LlamaConfig>(model)) return {};
  Pairs stored;
  for (const bool is_first : {true, false}) AddTensors(is_first ? a : b, is_first, &stored);
  LoraConfig all;  // Names do not depend on the rank.
  all.rank = 1;
  std::vector<std::pair<std::string, Pair>> adapters;
  bool renamed = false;
  for (const NamedParam& param : AdapterParamsOf(model, all)) {
    const Pair native = stored[MainKey(param.ours)], peft = stored[param.theirs];
    const Pair both = {std::max(native.first, peft.first), std::max(native.second, peft.second), {}, {}};
    if (both.first < 0 && both.second < 0) continue;
    renamed |= (native.first < 0) != (native.second < 0) && (peft.first < 0) != (peft.second < 0);
    adapters.emplace_back(param.ours, both);
  }
  if (!renamed) adapters.clear();
  return adapters;
}

// Entries of one side, except for tensors that were compared.
std::vector<std::string> LeftOut(const TensorReader& reader, const std::set<int64_t>& compared) {
  std::vector<std::string> names;
  for (size_t i = 0; i < reader.tensors().size(); ++i) {
    if (compared.count(static_cast<int64_t>(i)) == 0) names.push_back(reader.tensors()[i].name);
  }
  return WithValues(std::move(names), reader);
}

absl::StatusOr<Comparison> CompareAdapters(const std::vector<std::pair<std::string, Pair>>& adapters,
                                           const TensorReader& a, const TensorReader& b, int threads,
                                           const std::function<bool()>& stopped) {
  std::vector<TensorDifference> found(adapters.size());
  FSDPD_RETURN_IF_ERROR(ParallelFor(found.size(), threads, stopped, [&](size_t i) -> absl::Status {
    found[i].name = adapters[i].first;
    FSDPD_RETURN_IF_ERROR(Compare(a, b, adapters[i].second, &found[i]));
    const bool is_compared = found[i].first == found[i].second || found[i].largest.has_value();
    if (!is_compared) found[i].numbers = -1;
    return absl::OkStatus();
  }));
  std::set<int64_t> first, second;
  for (const auto& [name, pair] : adapters) {
    first.insert(pair.first);
    second.insert(pair.second);
  }
  Comparison comparison;
  comparison.of_parameters = true;
  comparison.left_out_first = LeftOut(a, first);
  comparison.left_out_second = LeftOut(b, second);
  Divide(std::move(found), &comparison);
  return comparison;
}

}  // namespace

absl::StatusOr<StoreToCompare> OpenToCompare(const std::string& directory) {
  FSDPD_ASSIGN_OR_RETURN(std::shared_ptr<const TensorReader> reader, OpenStore(directory));
  return StoreToCompare{directory, std::move(reader)};
}

absl::StatusOr<Comparison> CompareStores(const StoreToCompare& first, const StoreToCompare& second,
                                         const std::optional<ModelConfig>& model, int threads,
                                         const std::function<bool()>& stopped) {
  const TensorReader* const a = first.reader.get();
  const TensorReader* const b = second.reader.get();
  std::string not_of_model;
  if (model.has_value()) {
    if (const auto adapters = AdaptersOf(*a, *b, *model); !adapters.empty())
      return CompareAdapters(adapters, *a, *b, threads, stopped);
    FSDPD_ASSIGN_OR_RETURN(const Sources sources, SourcesOf(first, second, *model, &not_of_model));
    if (sources.first != nullptr) return CompareParams(sources, *a, *b, *model, threads, stopped);
  }
  Pairs pairs;
  FSDPD_RETURN_IF_ERROR(AddSide(*a, true, &pairs));
  FSDPD_RETURN_IF_ERROR(AddSide(*b, false, &pairs));
  std::vector<TensorDifference> found;
  std::vector<const Pair*> of;
  for (const auto& [name, pair] : pairs) {
    found.push_back({name, "", "", std::nullopt, 0});
    of.push_back(&pair);
  }
  FSDPD_RETURN_IF_ERROR(ParallelFor(found.size(), threads, stopped,
                                    [&](size_t i) { return Compare(*a, *b, *of[i], &found[i]); }));
  Comparison comparison;
  comparison.not_of_model = std::move(not_of_model);
  Divide(std::move(found), &comparison);
  return comparison;
}

}  // namespace fsdpd
