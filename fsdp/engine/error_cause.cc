#include "fsdp/engine/error_cause.h"

#include <absl/strings/cord.h>

#include <string>

#include "base/errno_status.h"
#include "fsdp/torch/torch_status.h"

namespace fsdpd {
namespace {

constexpr char kPayload[] = "fsdpd.v1.ErrorClass";

// The content of the file is wrong, as found by its reader.
bool IsOfContent(const absl::Status& status) {
  return absl::IsInvalidArgument(status) || absl::IsFailedPrecondition(status) ||
         absl::IsUnimplemented(status);
}

bool IsOfFile(const absl::Status& status) {
  return IsOfContent(status) || absl::IsNotFound(status) || absl::IsPermissionDenied(status) ||
         absl::IsDataLoss(status);
}

absl::Status Marked(const v1::ErrorClass& fault, const absl::Status& status) {
  if (status.ok() || fault.kind() == v1::ErrorClass::KIND_UNSPECIFIED || CauseOf(status).has_value())
    return status;
  absl::Status blamed = status;
  blamed.SetPayload(kPayload, absl::Cord(fault.SerializeAsString()));
  return blamed;
}

}  // namespace

absl::Status WithCause(v1::ErrorClass::Kind kind, bool permanent, const absl::Status& status) {
  v1::ErrorClass fault;
  fault.set_kind(kind);
  fault.set_permanent(permanent);
  return Marked(fault, status);
}

absl::Status WithNodeCause(v1::ErrorClass::Kind kind, const absl::Status& status) {
  v1::ErrorClass fault;
  fault.set_kind(kind);
  fault.set_node_only(true);
  return Marked(fault, status);
}

absl::Status WithNodeFileCause(v1::ErrorClass::Kind kind, const absl::Status& status) {
  return IsOfFile(status) ? WithNodeCause(kind, status) : status;
}

absl::Status WithFileCause(v1::ErrorClass::Kind kind, bool by_all, const absl::Status& status) {
  return IsOfFile(status) ? WithCause(kind, by_all && IsOfContent(status), status) : status;
}

std::optional<v1::ErrorClass> CauseOf(const absl::Status& status) {
  const auto payload = status.GetPayload(kPayload);
  v1::ErrorClass fault;
  if (payload.has_value() && fault.ParseFromString(std::string(*payload))) return fault;
  const bool out_of_descriptors = IsOutOfDescriptors(status);
  if (!absl::IsResourceExhausted(status) && !out_of_descriptors) return std::nullopt;
  fault.set_kind(out_of_descriptors || IsOfThreads(status) ? v1::ErrorClass::KIND_NODE
                                                           : v1::ErrorClass::KIND_MEMORY);
  return fault;
}

}  // namespace fsdpd
