#include "fsdp/checkpoint/convert/lora_merge.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/strip.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <set>
#include <utility>

#include "base/check.h"
#include "base/parallel_for.h"
#include "base/spec_text/located_violation.h"
#include "fsdp/checkpoint/convert/open_store.h"
#include "fsdp/checkpoint/convert/param_source.h"
#include "fsdp/checkpoint/format/crc32.h"
#include "fsdp/checkpoint/format/number_cast.h"
#include "fsdp/checkpoint/hf/hf_store.h"
#include "fsdp/checkpoint/names/adapter_names.h"
#include "fsdp/checkpoint/names/base_hash.h"
#include "fsdp/checkpoint/names/job_keys.h"
#include "fsdp/kernels/nf4/nf4_format.h"
#include "fsdp/plan/model/describe_model.h"
#include "fsdp/plan/model/lora_facts.h"

namespace fsdpd {
namespace {

constexpr int64_t kChunkElements = 1 << 20;

// The elements of a tensor as float32.
absl::StatusOr<std::vector<float>> ReadFloats(const TensorReader& reader, size_t tensor) {
  const StoredTensor& stored = reader.tensors()[tensor];
  std::vector<char> numbers(stored.numbers() * std::max<int64_t>(stored.type->bytes, sizeof(float)));
  FSDPD_RETURN_IF_ERROR(reader.Read(tensor, numbers.data()));
  CastNumbers(*stored.type, *FindTensorType("float32"), stored.numbers(), numbers.data());
  const auto* const floats = reinterpret_cast<const float*>(numbers.data());
  return std::vector<float>(floats, floats + stored.numbers());
}

struct BaseChunk {
  std::string param;  // Our full name.
  int64_t begin = 0, elements = 0;
  bool in_fp32 = false;
  bool takes_adapter = false;
};

std::vector<BaseChunk> ChunksOf(const ModelConfig& model) {
  std::vector<BaseChunk> chunks;
  for (const UnitFacts& unit : DescribeModel(model, 1, 1, DType::kFp32).units) {
    for (const ParamFacts& param : unit.params) {
      for (int64_t done = 0; done < param.elements(); done += kChunkElements) {
        chunks.push_back({FullName(unit, param), done, std::min(kChunkElements, param.elements() - done),
                          param.fixed, TakesAdapter(unit, param)});
      }
    }
  }
  return chunks;
}

void RoundToNf4(std::vector<float>* numbers) {
  uint8_t block[kNf4BlockBytes];
  for (size_t begin = 0; begin < numbers->size(); begin += kNf4Block) {
    kernels::Nf4Quantize(numbers->data() + begin, block);
    for (int i = 0; i < kNf4Block; ++i) (*numbers)[begin + i] = kernels::Nf4Number(block, i);
  }
}

// Of the elements as a job stores them, in `type`. Overwrites `numbers`.
uint64_t SumOf(const BaseChunk& chunk, const TensorType& type, std::vector<float>* numbers) {
  auto* const bytes = reinterpret_cast<char*>(numbers->data());
  CastNumbers(*FindTensorType("float32"), type, chunk.elements, bytes);
  const uint64_t name = HashOfName(chunk.param);
  uint64_t sum = 0;
  for (int64_t i = 0; i < chunk.elements; ++i) {
    int16_t narrow = 0;
    int32_t wide = 0;
    if (type.bytes == sizeof(narrow)) {
      std::memcpy(&narrow, bytes + i * sizeof(narrow), sizeof(narrow));
      wide = narrow;
    } else {
      std::memcpy(&wide, bytes + i * sizeof(wide), sizeof(wide));
    }
    sum += HashOfElement(name, chunk.begin + i, wide);
  }
  return sum;
}

}  // namespace

absl::StatusOr<std::unique_ptr<LoraMerge>> LoraMerge::Open(const std::string& directory,
                                                           const ModelConfig& model, const LoraConfig& lora) {
  const bool native = FormatOf(directory) != StoreFormat::kHf;
  FSDPD_ASSIGN_OR_RETURN(const std::unique_ptr<TensorReader> reader,
                         native ? OpenStore(directory) : OpenPeftDirectory(directory));
  LoraConfig every = lora;
  every.targets.clear();
  std::unique_ptr<LoraMerge> merge(new LoraMerge(lora));
  merge->crc32_ = Crc32(reinterpret_cast<const char*>(&merge->scale_), sizeof(merge->scale_));
  std::set<std::string> known;
  const auto error = [&](const std::string& name, const char* what) {
    return absl::DataLossError(absl::StrCat(directory, ": ", Escaped(name), ": ", what));
  };
  for (const NamedParam& param : AdapterParamsOf(model, every)) {
    const std::string name = native ? MainKey(param.ours) : param.theirs;
    const int64_t at = reader->Find(name);
    if (at < 0) continue;
    known.insert(name);
    if (reader->tensors()[at].shape != param.shape) return error(name, "has another shape than the model's");
    if (!CanCast(*reader->tensors()[at].type)) return error(name, "is not of a floating-point type");
    FSDPD_ASSIGN_OR_RETURN(std::vector<float> numbers, ReadFloats(*reader, at));
    if (!std::all_of(numbers.begin(), numbers.end(), [](float number) { return std::isfinite(number); }))
      return error(name, "has values that are not finite");
    merge->crc32_ = Crc32(name.data(), static_cast<int64_t>(name.size()), merge->crc32_);
    merge->crc32_ = Crc32(reinterpret_cast<const char*>(numbers.data()),
                          static_cast<int64_t>(numbers.size() * sizeof(float)), merge->crc32_);
    Adapter& adapter = merge->adapters_[param.ours.substr(0, param.ours.rfind('.'))];
    if (param.ours.back() == 'A') {
      adapter.inputs = param.shape[1];
      adapter.a = std::move(numbers);
    } else {
      adapter.outputs = param.shape[0];
      adapter.b = std::move(numbers);
    }
  }
  for (const auto& [ours, adapter] : merge->adapters_) {
    if (adapter.a.empty() || adapter.b.empty()) return error(ours, "has only one of the adapter's matrices");
  }
  if (merge->adapters_.empty()) return absl::DataLossError(absl::StrCat(directory, ": has no adapters"));
  for (const StoredTensor& tensor : reader->tensors()) {
    const bool of_model = !native || tensor.name.compare(0, sizeof(kNativePrefix) - 1, kNativePrefix) == 0;
    if (of_model && known.count(tensor.name) == 0)
      return error(tensor.name, "is not an adapter of the model");
  }
  return merge;
}

absl::Status CheckBase(const BaseLabel& want, const std::string& base, const ModelConfig& model, int threads,
                       const std::function<bool()>& stopped) {
  if (want.empty()) return absl::OkStatus();
  FSDPD_ASSIGN_OR_RETURN(const std::unique_ptr<ParamSource> source, ParamSource::Open(base, model));
  if (!source->violations().empty()) {
    const DcpViolation& first = source->violations()[0];
    return absl::DataLossError(absl::StrCat(base, ": ", first.where, ": ", first.what));
  }
  const std::string compute(absl::StripSuffix(want.type, kNf4Suffix));
  const bool nf4 = compute != want.type;
  const char* const type = compute == "bf16" ? "bfloat16" : compute == "fp16" ? "float16" : "float32";
  const std::vector<BaseChunk> chunks = ChunksOf(model);
  std::atomic<uint64_t> sum{0};
  FSDPD_RETURN_IF_ERROR(ParallelFor(chunks.size(), threads, stopped, [&](size_t c) -> absl::Status {
    const BaseChunk& chunk = chunks[c];
    std::vector<float> numbers(chunk.elements);
    FSDPD_RETURN_IF_ERROR(source->ReadRun(chunk.param, chunk.begin, chunk.elements, numbers.data()));
    const bool rounds = nf4 && chunk.takes_adapter;
    if (rounds && chunk.elements % kNf4Block != 0)
      return absl::FailedPreconditionError(absl::StrCat(chunk.param, ": size is not a multiple of ",
                                                        kNf4Block, "; use the base model of the job"));
    if (rounds) RoundToNf4(&numbers);
    sum += SumOf(chunk, *FindTensorType(chunk.in_fp32 || rounds ? "float32" : type), &numbers);
    return absl::OkStatus();
  }));
  const std::string found = absl::StrCat(absl::Hex(sum.load(), absl::kZeroPad16));
  if (found == want.hash) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(base, ": the adapters were trained with other frozen weights (got ", found, ", want ",
                   want.hash, want.path.empty() ? "" : " ", want.path, "); use that base model"));
}

void LoraMerge::AddTo(const std::string& ours, float* weights) const {
  const Adapter& adapter = adapters_.at(ours);
  for (int64_t row = 0; row < adapter.outputs; ++row) {
    float* const out = weights + row * adapter.inputs;
    for (int64_t r = 0; r < rank_; ++r) {
      const float factor = scale_ * adapter.b[row * rank_ + r];
      const float* const a = adapter.a.data() + r * adapter.inputs;
      for (int64_t i = 0; i < adapter.inputs; ++i) out[i] += factor * a[i];
    }
  }
}

}  // namespace fsdpd
