// Every bound that keeps a queue, a message or a retry finite, with its reason. A limit lives here when two
// directories must agree on it; a limit of one file stays in that file.
#pragma once

#include <cstdint>

namespace fsdpd {

// A JobSpec is a page of text; a megabyte is already a mistake or an attack.
constexpr int64_t kMaxJobSpecBytes = 1 << 20;

// Largest gRPC message either way: a page of jobs with their specs.
constexpr int kMaxRpcBytes = 16 << 20;

// A frame between rank and agent. Step reports take about 1 KiB; a Launch carries a JobSpec.
constexpr uint32_t kMaxFrameBytes = 4 << 20;

// Far above any model; below it no product of a model's sizes leaves 63 bits.
constexpr int64_t kMaxLayers = 1024;

// Ranks in one job. A coordinator is sized for 2,000 agents with 8 ranks each (docs/deploy.md).
constexpr int kMaxWorld = 16384;

// Rank log lines kept in memory by the agent for a failure's tail, and the longest line.
constexpr int kLogTailLines = 40;
constexpr int kMaxLogLineBytes = 16 << 10;

// Lines of rank logs between agents and who reads them. A window is what agents may have sent of one reader's
// lines that it has not taken: a few round trips of a fast one. The bound is over all readers of a
// coordinator: twice what the 512 that it serves at once may have under way, as one that reads more than 8
// nodes has a larger window.
constexpr int64_t kLogWindowBytes = 128 << 10;          // A reader, over its nodes.
constexpr int64_t kMinLogSourceWindowBytes = 16 << 10;  // One of its nodes: the longest line.
constexpr int64_t kMaxLogReaderBytes = 128 << 20;
// What a line costs: its text, and what holds it in memory.
constexpr int64_t LogLineCost(int64_t bytes) { return bytes + 128; }

// Reports an agent keeps while its coordinator is away: ten minutes of one-second steps for 8 ranks.
constexpr int kMaxBufferedReports = 4800;

// Checkpoints of a job that its coordinator knows, and that an agent keeps to tell of while it is away: more
// than a directory holds at once (checkpoint.keep_last is 3 by default).
constexpr int kMaxKnownCheckpoints = 16;

// Notes on what an attempt started from, and checkpoints that it passed over: what telemetry.proto allows of
// each. Newer ones are as damaged, or differ in the same.
constexpr int kMaxStartNotes = 16;

// Heartbeats: an agent is lost after three missed ones (about 10 s), as torchft and Kubernetes leases do.
constexpr int kHeartbeatIntervalMs = 3000;
constexpr int kAgentLostAfterMs = 10000;

// A rank of which nothing moves is told of again and again while that lasts, and counts for so long as twice
// may be missed.
constexpr int kStillToldEveryMs = 5000;
constexpr int kStillForgottenAfterMs = 15000;

// Rendezvous: keys and values per attempt (a NCCL id is 128 bytes, an address of a rank under 300 bytes).
constexpr int kMaxRendezvousKeys = 1 << 20;
constexpr int kMaxRendezvousValueBytes = 64 << 10;

// A TCP communicator receives this many bytes before it sums them: an exchange of this size costs little in
// addition to its bytes, and it is small next to a bucket. The memory plan counts it.
constexpr int64_t kMaxTcpReceivedBytes = 4 << 20;

}  // namespace fsdpd
