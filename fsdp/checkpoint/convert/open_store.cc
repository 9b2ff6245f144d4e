#include "fsdp/checkpoint/convert/open_store.h"

#include <absl/strings/str_cat.h>
#include <unistd.h>

#include "base/check.h"
#include "fsdp/checkpoint/convert/megatron_files.h"
#include "fsdp/checkpoint/dcp/dcp_metadata.h"
#include "fsdp/checkpoint/dcp/dcp_reader.h"
#include "fsdp/checkpoint/hf/hf_store.h"

namespace fsdpd {

StoreFormat FormatOf(const std::string& directory) {
  const auto has = [&](const char* name) {
    return access(absl::StrCat(directory, "/", name).c_str(), F_OK) == 0;
  };
  if (!has(kDcpMetadataName)) return StoreFormat::kHf;
  return has(kMegatronMetadataName) ? StoreFormat::kTorchDist : StoreFormat::kDcp;
}

absl::StatusOr<std::unique_ptr<TensorReader>> OpenStore(const std::string& directory) {
  if (FormatOf(directory) != StoreFormat::kHf) return DcpReader::Open(directory);
  absl::StatusOr<std::unique_ptr<TensorReader>> reader = OpenHfDirectory(directory);
  if (!absl::IsNotFound(reader.status()) || HasHfWeights(directory)) return reader;
  const std::string problem = PeftProblem(directory);
  return absl::NotFoundError(absl::StrCat(
      directory, ": not a checkpoint: ",
      problem.empty() ? absl::StrCat("it has neither ", kDcpMetadataName, ", nor safetensors") : problem));
}

}  // namespace fsdpd
