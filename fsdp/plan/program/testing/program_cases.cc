#include "fsdp/plan/program/testing/program_cases.h"

#include <algorithm>

#include "fsdp/plan/model/describe_model.h"

namespace fsdpd {

std::vector<std::string> ProgramCase::Lines() const { return LinesOf(program, layout); }

Spec PresetSpec(const char* preset, int64_t world, int64_t micro_batches) {
  Spec spec;
  spec.model = *FindPreset(preset);
  spec.data.sequence_length = 128;
  spec.steps = 1;
  spec.mesh = Mesh::DataParallel(1, world);
  spec.global_batch = world * micro_batches;
  spec.precision.compute = DType::kBf16;
  return spec;
}

Spec Llama8b(int64_t world) {
  Spec spec = PresetSpec("llama3-8b", world, 1);
  spec.data.sequence_length = 8192;
  spec.global_batch = 64;
  spec.prefetch_bytes = int64_t{1} << 30;
  return spec;
}

Spec SmallSpec(Strategy strategy) {
  Spec spec = PresetSpec("tiny", 2, 1);
  std::get<LlamaConfig>(spec.model).layers = 1;
  spec.precision.compute = DType::kFp32;
  spec.strategy = strategy;
  return spec;
}

ProgramCase ThreeUnits(Strategy strategy, const std::function<void(Spec*)>& changes) {
  Spec spec = SmallSpec(strategy);
  if (changes != nullptr) changes(&spec);
  return Compiled(spec);
}

void Tie(Spec* spec) { std::get<LlamaConfig>(spec->model).tied_embeddings = true; }

void Save(Spec* spec) {
  spec->checkpoint.dir = "/runs/1";
  spec->checkpoint.every_steps = 1;
}

ProgramCase Compiled(const Spec& spec) {
  ProgramCase made;
  made.spec = spec;
  made.model = DescribeSpec(spec);
  made.layout = MakeLayout(made.model, LayoutOptionsOf(spec));
  made.program = CompileProgram(spec, made.model, made.layout);
  return made;
}

ProgramCase CompiledEvaluation(const Spec& spec) {
  ProgramCase made = Compiled(spec);
  made.program = CompileEvaluation(spec, made.model, made.layout, made.program);
  return made;
}

std::vector<std::string> LinesOf(const Program& program, const Layout& layout) {
  std::vector<std::string> lines;
  for (size_t i = 0; i < program.instructions.size(); ++i) {
    lines.push_back(Describe(program, layout, static_cast<int>(i)));
  }
  return lines;
}

int64_t LargestGatheredBytes(const Spec& spec) {
  int64_t largest = 0;
  for (const Bucket& bucket : MakeLayout(DescribeSpec(spec), LayoutOptionsOf(spec)).buckets) {
    largest = std::max(largest, bucket.gathered_bytes());
  }
  return largest;
}

}  // namespace fsdpd
