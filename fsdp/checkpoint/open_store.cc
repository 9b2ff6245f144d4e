#include "fsdp/checkpoint/open_store.h"

#include <absl/strings/str_cat.h>
#include <unistd.h>

#include <utility>

#include "base/check.h"
#include "fsdp/checkpoint/dcp_metadata.h"
#include "fsdp/checkpoint/dcp_store.h"
#include "fsdp/checkpoint/hf_store.h"
#include "fsdp/checkpoint/megatron_files.h"

namespace fsdpd {

StoreFormat FormatOf(const std::string& folder) {
  const auto has = [&](const char* name) {
    return access(absl::StrCat(folder, "/", name).c_str(), F_OK) == 0;
  };
  if (!has(kDcpMetadataName)) return StoreFormat::kHf;
  return has(kMegatronMetadataName) ? StoreFormat::kTorchDist : StoreFormat::kDcp;
}

absl::StatusOr<std::unique_ptr<TensorReader>> OpenStore(const std::string& folder) {
  if (FormatOf(folder) != StoreFormat::kHf) {
    FSDPD_ASSIGN_OR_RETURN(std::unique_ptr<DcpTensorReader> reader, DcpTensorReader::Open(folder));
    return reader;
  }
  absl::StatusOr<std::unique_ptr<TensorReader>> reader = OpenHfFolder(folder);
  if (!absl::IsNotFound(reader.status()) || HasHfWeights(folder)) return reader;
  return absl::NotFoundError(
      absl::StrCat(folder, ": there is no checkpoint: neither ", kDcpMetadataName, " nor safetensors"));
}

}  // namespace fsdpd
