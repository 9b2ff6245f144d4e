#include "fsdp/checkpoint/job/start_kind.h"

#include <absl/strings/str_cat.h>

#include <memory>

#include "base/check.h"
#include "fsdp/checkpoint/convert/open_store.h"
#include "fsdp/checkpoint/dcp/dcp_reader.h"
#include "fsdp/checkpoint/names/job_keys.h"
#include "fsdp/checkpoint/names/param_match.h"

namespace fsdpd {

absl::StatusOr<StartKind> KindOfStart(const std::string& path, const ModelConfig& model) {
  if (FormatOf(path) == StoreFormat::kHf) return StartKind::kForeign;
  FSDPD_ASSIGN_OR_RETURN(const std::unique_ptr<DcpReader> reader, DcpReader::Open(path));
  const std::optional<Naming> naming = NamingOf(*reader, model);
  if (naming.has_value() && *naming != Naming::kOurs) return StartKind::kForeign;
  return reader->FindValue(kIterationKey) != nullptr ? StartKind::kTraining : StartKind::kNative;
}

absl::StatusOr<bool> TakesParametersOnly(const CheckpointConfig& checkpoint, const std::string& path,
                                         StartKind kind) {
  if (kind == StartKind::kTraining) return !checkpoint.load_optimizer.value_or(true);
  if (!checkpoint.load_optimizer.value_or(false)) return true;
  const char* why = kind == StartKind::kForeign ? "fsdpd did not write it and can load only its parameters"
                                                : "it has no step number (iteration)";
  return absl::FailedPreconditionError(
      absl::StrCat("checkpoint.load_optimizer: true is not supported with ", path, ": ", why,
                   "; leave load_optimizer out to start at step 1 with its parameters"));
}

}  // namespace fsdpd
