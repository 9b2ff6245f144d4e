#include "fsdp/checkpoint/open_store.h"

#include <absl/strings/str_cat.h>
#include <unistd.h>

#include <utility>

#include "base/check.h"
#include "fsdp/checkpoint/dcp_metadata.h"
#include "fsdp/checkpoint/dcp_store.h"
#include "fsdp/checkpoint/hf_store.h"

namespace fsdpd {

StoreFormat FormatOf(const std::string& folder) {
  const bool dcp = access(absl::StrCat(folder, "/", kDcpMetadataName).c_str(), F_OK) == 0;
  return dcp ? StoreFormat::kDcp : StoreFormat::kHf;
}

absl::StatusOr<std::unique_ptr<TensorReader>> OpenStore(const std::string& folder) {
  if (FormatOf(folder) == StoreFormat::kDcp) {
    FSDPD_ASSIGN_OR_RETURN(std::unique_ptr<DcpTensorReader> reader, DcpTensorReader::Open(folder));
    return reader;
  }
  absl::StatusOr<std::unique_ptr<TensorReader>> reader = OpenHfFolder(folder);
  if (!absl::IsNotFound(reader.status())) return reader;
  return absl::NotFoundError(absl::StrCat(folder, ": there is no checkpoint: neither ", kDcpMetadataName,
                                          " nor safetensors; ", reader.status().message()));
}

}  // namespace fsdpd
