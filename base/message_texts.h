// Bounds of the texts that ranks and agents report: paths, errors, log lines, positions. Agents cut before
// they send, coordinators again when they receive, as an agent may be compromised: a job's record stays small
// enough to be stored and listed.
//
// Thread-safe: a pure function of the message.
#pragma once

#include <google/protobuf/message.h>

#include <cstddef>

namespace fsdpd {

constexpr size_t kMaxTextBytes = 4 << 10;      // PATH_MAX, or an error of a page.
constexpr size_t kMaxPositionBytes = 2 << 10;  // Fields `where` and `stood` (agent.proto, telemetry.proto).
constexpr size_t kMaxTextListBytes = 64 << 10;

// Cuts each string of `message` and of the messages within it between characters. Of a list of strings that
// together exceed kMaxTextListBytes the first ones are removed: the end of a log says why a rank failed.
void CutTexts(google::protobuf::Message* message);

}  // namespace fsdpd
