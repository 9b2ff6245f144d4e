// Labels of jobs and nodes, as Kubernetes has them; what finds them is base/label_selector.h.
//
// Pure functions. Errors: INVALID_ARGUMENT, with words that go on after a field's name.
#pragma once

#include <absl/status/statusor.h>

#include "base/label_selector.h"
#include "proto/fsdpd/v1/coordinator.pb.h"

namespace fsdpd {

using Labels = google::protobuf::RepeatedPtrField<v1::Label>;

// By key.
absl::StatusOr<Labels> CheckedLabels(const Labels& labels);

}  // namespace fsdpd
