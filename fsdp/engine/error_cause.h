// Attribution of a rank's error (v1::ErrorClass): attaches the kind of cause to a Status where it is known,
// such as where a file is opened or a device is requested, so that the rank process can report it to the
// agent. Resource limits on threads or open files are blamed on the node, like a process that fails to start;
// out-of-memory errors are recognized by their code. Any other unmarked error is the rank's own.
//
// Only errors whose codes describe a file or its content are blamed on the file; a lost peer, a timeout or an
// I/O error is not. Only a content error that all ranks have is permanent: a missing file may be missing on
// one node, or return.
//
// Pure.
#pragma once

#include <absl/status/status.h>

#include <optional>

#include "proto/fsdpd/v1/telemetry.pb.h"

namespace fsdpd {

// Marks `status` unless it is OK or already marked.
absl::Status WithCause(v1::ErrorClass::Kind kind, bool permanent, const absl::Status& status);

// Marks an error of a file or its content with `kind`; returns other errors unchanged. `by_all`: every rank
// has the same error, so an error of the content is permanent.
absl::Status WithFileCause(v1::ErrorClass::Kind kind, bool by_all, const absl::Status& status);

// Marks an error that another node may not have: other hardware, another build of fsdpd-rank, or other files.
absl::Status WithNodeCause(v1::ErrorClass::Kind kind, const absl::Status& status);

// Marks an error of a file or its content that only some ranks have, such as a late mount on one node;
// returns other errors unchanged.
absl::Status WithNodeFileCause(v1::ErrorClass::Kind kind, const absl::Status& status);

// The mark of an error, even if it was Annotated() (bad_step.h).
std::optional<v1::ErrorClass> CauseOf(const absl::Status& status);

}  // namespace fsdpd
