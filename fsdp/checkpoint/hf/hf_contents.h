// Contents of a safetensors directory (one file, or several with an index; or adapters of PEFT), and all
// violations that can be found without reading tensor data. Reading rejects a directory with violations
// (hf_store.h); `fsdpctl ckpt` shows them.
//
// Violations: an invalid index, or one that names missing files or tensors; a tensor in two files; a header
// that is invalid, has gaps or overlaps, or points past the end of the file; unsupported types; sizes that do
// not match type and shape. Tensors that the index does not name are not violations. config.json is not
// examined.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "fsdp/checkpoint/dcp/dcp_index.h"
#include "fsdp/checkpoint/hf/safetensors.h"
#include "fsdp/data/input_file.h"

namespace fsdpd {

inline constexpr char kHfSingleName[] = "model.safetensors";
inline constexpr char kPeftWeightsName[] = "adapter_model.safetensors";
inline constexpr char kHfIndexName[] = "model.safetensors.index.json";

struct HfFile {
  std::string name;
  std::shared_ptr<const InputFile> input;  // Open; null: cannot be opened.
  int64_t head_bytes = 0;                  // Position of the tensor data.
};

struct HfTensor {
  SafetensorsEntry entry;
  size_t file = 0;  // Index into HfContents::files.
};

struct HfContents {
  std::vector<HfFile> files;      // By name.
  std::vector<HfTensor> tensors;  // By name; may contain duplicates.
  DcpViolations violations;
  absl::Status first;  // The first violation as an error, with the path; OK if there are none.
};

// Errors: NOT_FOUND without safetensors files; INTERNAL or PERMISSION_DENIED if a file could not be opened or
// read for reasons outside of the directory.
// `adapters`: opens the adapters of PEFT even if the directory also has a model.
absl::StatusOr<HfContents> LoadHfContents(const std::string& directory, bool adapters = false);

// Reads every byte, one file per thread; a file that has become shorter is a violation. The format has no
// checksums, so damaged numbers are not detected. CANCELLED if `stopped`, which is polled; otherwise disk
// errors.
absl::Status ReadAllOf(HfContents* contents, int threads, const std::function<bool()>& stopped);

}  // namespace fsdpd
