// How many readers of logs, traces and records of steps a node serves at once: each holds files open there.
// Its coordinator, who alone asks, tells a client that there is no room; the agent's own bound is the same.
#pragma once

namespace fsdpd {

constexpr int kMaxNodeReaders = 256;

}  // namespace fsdpd
