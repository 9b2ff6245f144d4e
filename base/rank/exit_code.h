// Exit codes of ranks that several programs use: ranks exit with them, agents order exits by them, the
// coordinator derives the cause of a failure from them (rank.proto). 0, 1 and 2 have their usual meaning.
#pragma once

namespace fsdpd {

constexpr int kPeerFailedExitCode = 3;  // Another rank failed or is gone; this one only leaves.
constexpr int kRefusedExitCode = 126;   // The launch was refused; as in shells.
constexpr int kStoppedExitCode = 143;   // 128 + SIGTERM, as in shells and container runtimes.

}  // namespace fsdpd
