// Reader of a model's parameters, in parts, from a checkpoint of another program. A job can start from it
// without a conversion. Sources: a Hugging Face directory, or DCP of a transformers model, of torchtitan's
// llama or of Megatron-Core.
//
// If Megatron-Core's optimizer state is present, the main parameters are used, as in a conversion; the
// model's own tensors are rounded copies of these.
//
// A part costs only its own bytes in the file, even if the source has it transposed or in another order.
// Numbers are returned as float32; float64 values out of its range become infinite.
//
// Call order: Open, faults(); if empty, ReadRun. Const methods are thread-safe. Errors: the reader's, which
// name the file or tensor.
#pragma once

#include <absl/status/statusor.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "fsdp/checkpoint/convert/open_store.h"
#include "fsdp/checkpoint/names/param_match.h"

namespace fsdpd {

class ParamSource {
 public:
  // `model` is Llama, GPT-2 or a package.
  static absl::StatusOr<std::unique_ptr<ParamSource>> Open(const std::string& directory,
                                                           const ModelConfig& model);
  // LoRA adapters of PEFT. `model` is of the Llama family.
  static absl::StatusOr<std::unique_ptr<ParamSource>> OpenAdapters(const std::string& directory,
                                                                   const ModelConfig& model,
                                                                   const LoraConfig& lora);
  // For a directory that is already open.
  static absl::StatusOr<std::unique_ptr<ParamSource>> Of(std::shared_ptr<const TensorReader> reader,
                                                         const ModelConfig& model);

  // Parameters that are missing, have another shape, or are unexpected.
  const DcpViolations& violations() const { return match_.violations; }
  const std::vector<std::string>& left_out() const { return match_.left_out; }
  // Why existing main parameters of the optimizer are not used; empty: they are used, or do not exist.
  const std::string& no_main() const { return no_main_; }

  const TensorReader& reader() const { return *reader_; }

  // Traits of the files, see TensorReader.
  absl::StatusOr<std::vector<std::string>> Traits() const { return reader_->Traits(); }
  absl::Status CheckUnchanged() const { return reader_->CheckUnchanged(); }

  // The type in the source. REQUIRES: as ReadRun.
  const TensorType& TypeOf(const std::string& ours) const;

  // Elements [begin, begin + elements) of the flattened parameter with our name `ours`. REQUIRES: faults() is
  // empty, and the model has the parameter and these elements.
  absl::Status ReadRun(const std::string& ours, int64_t begin, int64_t elements, float* out) const;

 private:
  ParamSource(std::shared_ptr<const TensorReader> reader, ParamMatch match, int64_t head_rows);

  absl::Status TakeMain(const ModelConfig& model);

  // `param`: index in the match; elements are counted within it.
  absl::Status ReadFloats(size_t param, int64_t begin, int64_t elements, float* out) const;
  // In the source's type.
  absl::Status ReadNumbers(size_t param, int64_t begin, int64_t elements, char* out) const;
  absl::Status ReadPart(size_t param, const Rectangle& part, char* out) const;

  const std::shared_ptr<const TensorReader> reader_;
  ParamMatch match_;
  std::string no_main_;
  const int64_t head_rows_;
  std::map<std::string, size_t> numbers_;  // By our name; for experts, the index of the first one.
};

}  // namespace fsdpd
