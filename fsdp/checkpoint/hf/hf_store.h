// TensorReader and TensorWriter (tensor_store.h) for Hugging Face model directories: safetensors, one file or
// several with an index, and config.json.
//
// The format has no checksums: damaged numbers are not detected, and only Traits() and CheckUnchanged() can
// tell whether two readers opened the same files.
//
// Errors of the reader: DATA_LOSS if a byte of a file belongs to no tensor or the index is incorrect,
// NOT_FOUND if the directory has no safetensors file, UNIMPLEMENTED if the weights have another format.
#pragma once

#include <absl/status/statusor.h>

#include <memory>
#include <string>
#include <vector>

#include "fsdp/checkpoint/format/tensor_store.h"
#include "fsdp/checkpoint/hf/hf_contents.h"
#include "fsdp/checkpoint/hf/peft_config.h"

namespace fsdpd {

inline constexpr char kHfConfigName[] = "config.json";

absl::StatusOr<std::unique_ptr<TensorReader>> OpenHfDirectory(const std::string& directory);

// Adapters of PEFT.
absl::StatusOr<std::unique_ptr<TensorReader>> OpenPeftDirectory(const std::string& directory);

// Whether it has weights in any format; if so, OpenHfDirectory() reports what is wrong with them.
bool HasHfWeights(const std::string& directory);

// Why a directory with adapters of PEFT cannot be read, with a fix: they are not safetensors, or are in
// subdirectories, to which PEFT saves adapters that have a name. Empty: it has no such adapters.
std::string PeftProblem(const std::string& directory);

// File names of a directory: of a model, or of PEFT's adapters, which are always one file.
struct HfFileNames {
  const char* weights;
  const char* config;
};
inline constexpr HfFileNames kHfModelNames = {kHfSingleName, kHfConfigName};
inline constexpr HfFileNames kPeftNames = {kPeftWeightsName, kPeftConfigName};

// Writes "model.safetensors" if everything fits into `file_bytes`, else "model-00001-of-00002.safetensors"
// and so on, with model.safetensors.index.json. `config` is the content of config.json. `whole`: complete
// files of an earlier writer for the same tensors. REQUIRES: the directory exists and has nothing but
// `whole`; every type has a name in safetensors; names are unique.
absl::StatusOr<std::unique_ptr<TensorWriter>> MakeHfWriter(const std::string& directory,
                                                           const std::vector<StoredTensor>& tensors,
                                                           int64_t file_bytes, const std::string& config,
                                                           const std::vector<CompleteFile>& whole = {},
                                                           const HfFileNames& names = kHfModelNames);

}  // namespace fsdpd
