// A model's parameters in a checkpoint that is not ours, read in parts: what a job starts from without a
// conversion. A Hugging Face directory, and DCP of a transformers model, of torchtitan's llama or of
// Megatron-Core.
//
// Where the optimizer's state of Megatron-Core is there too, the numbers are its main parameters, as in a
// conversion: the model's are those rounded.
//
// Each part costs the bytes that it has in the file and no more, also where the other side has rows as
// columns or in another order. Numbers come as float32, whatever they are there; of float64, what is too
// large for it is infinite.
//
// Call order: Open, faults(); where there are none, ReadRun. Thread safety: const. Errors: the reader's,
// which name file or tensor.
#pragma once

#include <absl/status/statusor.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "fsdp/checkpoint/open_store.h"
#include "fsdp/checkpoint/param_match.h"

namespace fsdpd {

class ParamSource {
 public:
  // `model` is Llama or GPT-2.
  static absl::StatusOr<std::unique_ptr<ParamSource>> Open(const std::string& directory,
                                                           const ModelConfig& model);
  // Of a directory that is open.
  static absl::StatusOr<std::unique_ptr<ParamSource>> Of(std::shared_ptr<const TensorReader> reader,
                                                         const ModelConfig& model);

  // What of the model is not there, is there in another way, or is there too much.
  const DcpFaults& faults() const { return match_.faults; }
  const std::vector<std::string>& left_out() const { return match_.left_out; }
  // Why the optimizer's main parameters are not taken though there are some; empty: they are, or there are
  // none.
  const std::string& no_main() const { return no_main_; }

  const TensorReader& reader() const { return *reader_; }

  // Of the files, as TensorReader has them.
  absl::StatusOr<std::vector<std::string>> Traits() const { return reader_->Traits(); }
  absl::Status CheckUnchanged() const { return reader_->CheckUnchanged(); }

  // Of which type its numbers are there. REQUIRES: as ReadRun.
  const TensorType& TypeOf(const std::string& ours) const;

  // Elements [begin, begin + elements) of the flattened parameter, `ours` being its name here. REQUIRES:
  // faults() is empty, and the model has the parameter and so many elements of it.
  absl::Status ReadRun(const std::string& ours, int64_t begin, int64_t elements, float* out) const;

 private:
  ParamSource(std::shared_ptr<const TensorReader> reader, ParamMatch match, int64_t head_rows);

  absl::Status TakeMain(const ModelConfig& model);

  // Of a parameter by its number in the match, and of numbers within it.
  absl::Status ReadFloats(size_t param, int64_t begin, int64_t elements, float* out) const;
  // In the source's type.
  absl::Status ReadNumbers(size_t param, int64_t begin, int64_t elements, char* out) const;
  absl::Status ReadPart(size_t param, const Rectangle& part, char* out) const;

  const std::shared_ptr<const TensorReader> reader_;
  ParamMatch match_;
  std::string no_main_;
  const int64_t head_rows_;
  std::map<std::string, size_t> numbers_;  // By our name; of experts' the first one's.
};

}  // namespace fsdpd
