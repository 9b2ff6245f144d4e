// Limits of queues, messages and retries, with their reasons. A limit is defined here if two directories must
// agree on it; a limit of one file is defined in that file.
#pragma once

#include <cstdint>

namespace fsdpd {

// A JobSpec is a page of text; a megabyte is a mistake or an attack.
constexpr int64_t kMaxJobSpecBytes = 1 << 20;

// Largest gRPC message in both directions: a page of jobs with their specs.
constexpr int kMaxRpcBytes = 16 << 20;

// Frame between rank and agent. Step reports take about 1 KiB; a Launch contains a JobSpec.
constexpr uint32_t kMaxFrameBytes = 4 << 20;

// Far above any model; below this, products of model dimensions fit 63 bits.
constexpr int64_t kMaxLayers = 1024;

// Ranks in one job. A coordinator is sized for 2,000 agents with 8 ranks each (docs/deploy.md).
constexpr int kMaxWorld = 16384;

// Log lines of a rank in a failure report, and the longest line.
constexpr int kLogTailLines = 40;
constexpr int kMaxLogLineBytes = 16 << 10;

// Flow control of log readers. A window is the amount that agents may send for one reader before it takes
// any: a few round trips of a fast reader. kMaxLogReaderBytes is over all readers of a coordinator: twice the
// amount that 512 concurrent readers may have in flight, since a reader of more than 8 nodes has a larger
// window.
constexpr int64_t kLogWindowBytes = 128 << 10;          // Per reader, over its nodes.
constexpr int64_t kMinLogSourceWindowBytes = 16 << 10;  // Per node of a reader: the longest line.
constexpr int64_t kMaxLogReaderBytes = 128 << 20;
// Cost of a line: its text plus overhead in memory.
constexpr int64_t LogLineCost(int64_t bytes) { return bytes + 128; }

// Reports that an agent retains while its coordinator is away: ten minutes of one-second steps of 8 ranks.
constexpr int kMaxBufferedReports = 4800;

// Checkpoints of a job that its coordinator knows, and that an agent retains while the coordinator is away:
// more than exist at a time (checkpoint.keep_last is 3 by default).
constexpr int kMaxKnownCheckpoints = 16;

// Notes about the start of an attempt, and skipped checkpoints: the limit in telemetry.proto for each.
// Further ones have the same causes.
constexpr int kMaxStartNotes = 16;

// An agent is lost after three missed heartbeats (about 10 s), like in torchft and Kubernetes leases.
constexpr int kHeartbeatIntervalMs = 3000;
constexpr int kAgentLostAfterMs = 10000;

// A rank without progress is reported repeatedly while that lasts. The report expires when two repetitions
// were missed.
constexpr int kNoProgressReportIntervalMs = 5000;
constexpr int kNoProgressExpiryMs = 15000;

// Rendezvous keys per attempt, and bytes per value (a NCCL id has 128 bytes, the address of a rank less than
// 300).
constexpr int kMaxRendezvousKeys = 1 << 20;
constexpr int kMaxRendezvousValueBytes = 64 << 10;

// Bytes that a TCP communicator receives before it reduces them: large enough to amortize the overhead of an
// exchange, small next to a bucket. Part of the memory plan.
constexpr int64_t kMaxTcpReceivedBytes = 4 << 20;

}  // namespace fsdpd
