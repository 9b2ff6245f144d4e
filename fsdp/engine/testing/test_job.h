// Test helpers of the engine: a small job, training with ranks as threads, and comparison of two runs.
#pragma once

#include <string>

#include "fsdp/engine/local_job.h"
#include "proto/fsdpd/v1/job.pb.h"

namespace fsdpd {

// Llama with two layers whose sizes are not divisible by any number of shards, so shard boundaries fall
// inside rows and every bucket has padding. 12 samples per step, six steps, synthetic data, one rank on CPU,
// fp32, no_shard.
v1::JobSpec TestJob();

struct TestMesh {
  std::string name;  // For test names.
  v1::Strategy strategy = v1::STRATEGY_NO_SHARD;
  int outer_size = 1;
  v1::Strategy outer_strategy = v1::STRATEGY_UNSPECIFIED;
};

// `job` on `world` ranks, with the samples of each rank in `micro_batches` micro-batches.
v1::JobSpec Over(v1::JobSpec job, const TestMesh& mesh, int world, int micro_batches = 1);

// Runs the job. REQUIRES: the job is accepted and succeeds; otherwise ends the test with the reason.
LocalJobResult Train(const v1::JobSpec& job, const LocalJobOptions& options = {});

// Expects losses within `relative`, and gradient norms and weights within 10 * `relative`, since they sum
// more values. 0: bit-identical.
void ExpectSame(const LocalJobResult& expected, const LocalJobResult& actual, double relative);

// The same for a run that was resumed: its steps are the last ones of `whole`.
void ExpectSameRest(const LocalJobResult& whole, const LocalJobResult& rest, double relative);

// Expects evaluations after the same steps, with equal token counts and losses within `relative`. Returns
// their number.
int ExpectSameEvaluations(const LocalJobResult& expected, const LocalJobResult& actual, double relative);

}  // namespace fsdpd
