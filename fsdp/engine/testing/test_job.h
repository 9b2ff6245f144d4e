// A small job, and what the engine's tests do with it: train it with ranks as threads, and compare two runs.
#pragma once

#include <string>

#include "fsdp/engine/local_job.h"
#include "proto/fsdpd/v1/job.pb.h"

namespace fsdpd {

// Llama of two layers whose sizes no number of shards divides, so that cuts fall inside rows and padding is
// everywhere; 12 samples a step, six steps, synthetic data, one rank on CPU, fp32, no_shard.
v1::JobSpec TestJob();

struct TestMesh {
  std::string name;  // For test names.
  v1::Strategy strategy = v1::STRATEGY_NO_SHARD;
  int outer_size = 1;
  v1::Strategy outer_strategy = v1::STRATEGY_UNSPECIFIED;
};

// `job` over `world` ranks, its samples in `micro_batches` parts on each.
v1::JobSpec Over(v1::JobSpec job, const TestMesh& mesh, int world, int micro_batches = 1);

// REQUIRES: the job is accepted and ends well. Ends the test with the reason where it does not.
LocalJobResult Train(const v1::JobSpec& job, const LocalJobOptions& options = {});

// Losses within `relative`, gradient norms and weights within ten times as much (they add up more). 0: the
// same bits.
void ExpectSame(const LocalJobResult& expected, const LocalJobResult& actual, double relative);

// The same of a run that went on from a checkpoint: its steps are the last of `whole`, and so its weights.
void ExpectSameRest(const LocalJobResult& whole, const LocalJobResult& rest, double relative);

// Rounds of evaluation after the same steps, over as many tokens, their losses within `relative`; so many.
int ExpectSameEvaluations(const LocalJobResult& expected, const LocalJobResult& actual, double relative);

}  // namespace fsdpd
