// Specs, compiled programs and listings shared by the tests of programs.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "fsdp/plan/program/program.h"

namespace fsdpd {

struct ProgramCase {
  Spec spec;
  ModelFacts model;
  Layout layout;
  Program program;

  std::vector<std::string> Lines() const;
};

// World size 2, one micro-batch, fp32, no prefetch.
Spec SmallSpec(Strategy strategy);
// Compiles a model of an embedding, one layer and a head. `changes` edits the spec first; may be null.
ProgramCase ThreeUnits(Strategy strategy, const std::function<void(Spec*)>& changes = nullptr);
void Tie(Spec* spec);
void Save(Spec* spec);  // Enables checkpoints.

Spec PresetSpec(const char* preset, int64_t world, int64_t micro_batches);

// Llama 3 8B at 8192 tokens, 64 samples a step, bf16, 1 GiB of prefetch.
Spec Llama8b(int64_t world);

// Describes and lays out the spec's model and compiles its training program.
ProgramCase Compiled(const Spec& spec);
ProgramCase CompiledEvaluation(const Spec& spec);

std::vector<std::string> LinesOf(const Program& program, const Layout& layout);

int64_t LargestGatheredBytes(const Spec& spec);

constexpr Strategy kStrategies[] = {Strategy::kNoShard, Strategy::kOptim, Strategy::kOptimGrads,
                                    Strategy::kOptimGradsParams};

}  // namespace fsdpd
