// The exit codes of a rank that more than one program goes by: it exits with them, its agent orders ends by
// them, the coordinator looks for causes in them (rank.proto). 0, 1 and 2 are what they are everywhere.
#pragma once

namespace fsdpd {

constexpr int kPeerFailedExitCode = 3;  // Another rank of the job failed, or is gone: this one only leaves.
constexpr int kRefusedExitCode = 126;   // It never ran: its launch was refused. As shells say it.
constexpr int kStoppedExitCode = 143;   // 128 + SIGTERM, as shells and container runtimes know it.

}  // namespace fsdpd
