// A directory as Hugging Face's transformers save a model: safetensors, one or several with an index, and
// config.json (tensor_store.h says what reader and writer are).
//
// Of the reader: every byte of a file is some tensor's, and what the index names is where it says; else
// DATA_LOSS. The format has no checksums: a number that was damaged is not seen, and that two opened the same
// files only by Traits() and CheckUnchanged(). NOT_FOUND where there are no safetensors, UNIMPLEMENTED where
// there are weights in another form.
#pragma once

#include <absl/status/statusor.h>

#include <memory>
#include <string>
#include <vector>

#include "fsdp/checkpoint/tensor_store.h"

namespace fsdpd {

inline constexpr char kHfConfigName[] = "config.json";

absl::StatusOr<std::unique_ptr<TensorReader>> OpenHfDirectory(const std::string& directory);

// Whether it has weights in whatever form: then OpenHfDirectory() tells what is wrong with them.
bool HasHfWeights(const std::string& directory);

// "model.safetensors" where all fits into `file_bytes`, else "model-00001-of-00002.safetensors" and so on
// with model.safetensors.index.json. `config` is the text of config.json. `whole`: of a writer before, for
// the same tensors.
// REQUIRES: the directory exists and has no more than `whole`; HasSafetensorsName() of every type; names
// differ.
absl::StatusOr<std::unique_ptr<TensorWriter>> MakeHfWriter(const std::string& directory,
                                                           const std::vector<StoredTensor>& tensors,
                                                           int64_t file_bytes, const std::string& config,
                                                           const std::vector<WholeFile>& whole = {});

}  // namespace fsdpd
