// Validation of job and node labels, with the rules of Kubernetes; base/api/label_selector.h matches them.
//
// Pure functions. Errors: INVALID_ARGUMENT with a message that follows the name of a field.
#pragma once

#include <absl/status/statusor.h>

#include "base/api/label_selector.h"
#include "proto/fsdpd/v1/coordinator.pb.h"

namespace fsdpd {

using Labels = google::protobuf::RepeatedPtrField<v1::Label>;

// Valid labels, sorted by key.
absl::StatusOr<Labels> CheckedLabels(const Labels& labels);

}  // namespace fsdpd
