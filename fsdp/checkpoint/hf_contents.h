// What lies in a directory of safetensors, one or several with an index, and all that is wrong with it short
// of reading its numbers. For who reads a fault is a refusal (hf_store.h); for who looks (`fsdpctl ckpt`) it
// is what to show.
//
// Faults are: an index that is none, or names files or tensors that are not there; a tensor in two files; a
// head that is none, with holes, overlaps, or numbers beyond the file's end; types that are not read, and
// bytes that are not type and shape. What a file has beside what the index names is none. config.json is not
// looked into.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "fsdp/checkpoint/dcp_index.h"
#include "fsdp/checkpoint/safetensors.h"
#include "fsdp/data/input_file.h"

namespace fsdpd {

inline constexpr char kHfSingleName[] = "model.safetensors";
inline constexpr char kHfIndexName[] = "model.safetensors.index.json";

struct HfFile {
  std::string name;
  std::shared_ptr<const InputFile> input;  // Open; null: it cannot be.
  int64_t head_bytes = 0;                  // Before the first number.
};

struct HfTensor {
  SafetensorsEntry entry;
  size_t file = 0;  // Of HfContents::files.
};

struct HfContents {
  std::vector<HfFile> files;      // By name.
  std::vector<HfTensor> tensors;  // By name; one that is there twice is so here.
  DcpFaults faults;
  absl::Status first;  // The first of them as an error, with the path; OK: there are none.
};

// An error where there are no safetensors (NOT_FOUND), or a file could not be opened or read for a reason
// that is none of the directory's (INTERNAL, PERMISSION_DENIED).
absl::StatusOr<HfContents> LoadHfContents(const std::string& directory);

// Reads every byte, each file on one of `threads`: one that is shorter by now is a fault. There are no
// checksums: a number that was damaged is not seen. CANCELLED when `stopped`, which is asked now and then;
// else what a disk that fails answers.
absl::Status ReadAllOf(HfContents* contents, int threads, const std::function<bool()>& stopped);

}  // namespace fsdpd
