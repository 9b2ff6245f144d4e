// Limits of texts that ranks and agents report: paths, errors, log lines, positions. Agents truncate before
// sending, and coordinators again when receiving, since an agent may be compromised: the record of a job
// stays small enough to be stored and listed.
//
// Thread-safe: a pure function of the message.
#pragma once

#include <google/protobuf/message.h>

#include <cstddef>

namespace fsdpd {

constexpr size_t kMaxTextBytes = 4 << 10;      // PATH_MAX, or an error of one page.
constexpr size_t kMaxPositionBytes = 2 << 10;  // Fields `position` (agent.proto, telemetry.proto).
constexpr size_t kMaxTextListBytes = 64 << 10;

// Truncates each string of `message` and of nested messages at a character boundary. If a list of strings
// exceeds kMaxTextListBytes, its first elements are removed: the end of a log explains a failure.
void CutTexts(google::protobuf::Message* message);

}  // namespace fsdpd
