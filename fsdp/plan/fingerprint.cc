#include "fsdp/plan/program_hash.h"

#include <xxhash.h>

namespace fsdpd {
namespace {

// Fixed-width fields and counted lists one after the other, so that no two inputs write the same bytes.
class Canonical {
 public:
  void Int(int64_t value) { bytes_.append(reinterpret_cast<const char*>(&value), sizeof value); }
  void Real(double value) { bytes_.append(reinterpret_cast<const char*>(&value), sizeof value); }
  void Text(const std::string& text) {
    Int(static_cast<int64_t>(text.size()));
    bytes_ += text;
  }
  template <typename List>
  void Count(const List& list) {
    Int(static_cast<int64_t>(list.size()));
  }
  uint64_t Hash() const { return XXH64(bytes_.data(), bytes_.size(), /*seed=*/0); }

 private:
  std::string bytes_;
};

void Add(const LlamaConfig& model, Canonical* out) {
  for (const int64_t size : {model.vocab_size, model.hidden_size, model.intermediate_size, model.layers,
                             model.heads, model.kv_heads}) {
    out->Int(size);
  }
  out->Real(model.rope_theta);
  out->Real(model.norm_epsilon);
}

void Add(const Spec& spec, Canonical* out) {
  Add(spec.model, out);
  out->Count(spec.data.tokens);
  for (const TokenSource& source : spec.data.tokens) {
    out->Real(source.weight);
    out->Int(static_cast<int64_t>(source.type));
  }
  for (const int64_t value :
       {spec.data.synthetic_vocab, spec.data.sequence_length, spec.steps, spec.micro_batch, spec.global_batch,
        static_cast<int64_t>(spec.seed), spec.schedule.warmup_steps, spec.prefetch_bytes, spec.world}) {
    out->Int(value);
  }
  for (const double value : {spec.adamw.lr, spec.adamw.beta1, spec.adamw.beta2, spec.adamw.eps,
                             spec.adamw.weight_decay, spec.clip_norm, spec.schedule.min_lr_ratio}) {
    out->Real(value);
  }
  for (const int value : {static_cast<int>(spec.schedule.shape), static_cast<int>(spec.compute),
                          static_cast<int>(spec.grad_comm), static_cast<int>(spec.strategy),
                          static_cast<int>(spec.recompute), static_cast<int>(spec.device)}) {
    out->Int(value);
  }
}

void Add(const Layout& layout, Canonical* out) {
  out->Int(layout.shards);
  out->Count(layout.units);
  for (const UnitLayout& unit : layout.units) {
    out->Text(unit.name);
    out->Int(unit.shard_elements);
    out->Count(unit.params);
    for (const ParamSlot& param : unit.params) {
      out->Text(param.name);
      out->Int(param.decay);
      out->Int(param.offset);
      out->Count(param.shape);
      for (const int64_t size : param.shape) out->Int(size);
    }
  }
}

void Add(const Program& program, Canonical* out) {
  out->Count(program.instructions);
  for (const Instruction& instruction : program.instructions) {
    out->Int(static_cast<int64_t>(instruction.op));
    out->Int(instruction.unit);
    out->Int(instruction.micro_batch);
    out->Int(static_cast<int64_t>(instruction.lane));
    out->Int(instruction.accumulate);
    out->Count(instruction.after);
    for (const int index : instruction.after) out->Int(index);
    out->Count(instruction.uses);
    for (const BufferUse& use : instruction.uses) {
      out->Int(use.buffer);
      out->Int(static_cast<int64_t>(use.access));
    }
  }
  out->Count(program.buffers);
  for (const Buffer& buffer : program.buffers) {
    out->Int(static_cast<int64_t>(buffer.kind));
    out->Int(buffer.unit);
    out->Int(buffer.bytes);
    out->Int(buffer.offset);
    out->Count(buffer.live);
    for (const Buffer::Interval& interval : buffer.live) {
      out->Int(interval.born);
      out->Int(interval.dies);
    }
  }
  out->Int(program.arena_bytes);
}

}  // namespace

uint64_t HashProgram(const Spec& spec, const Layout& layout, const Program& program) {
  Canonical canonical;
  Add(spec, &canonical);
  Add(layout, &canonical);
  Add(program, &canonical);
  return canonical.Hash();
}

}  // namespace fsdpd
