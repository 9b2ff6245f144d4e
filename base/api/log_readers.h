// Number of readers of logs, traces and step records that a node serves concurrently: each holds open files.
// The coordinator rejects clients beyond it; the agent enforces the same limit.
#pragma once

namespace fsdpd {

constexpr int kMaxNodeReaders = 256;

}  // namespace fsdpd
