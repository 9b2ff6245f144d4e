// Who owns which elements: each unit's parameters lie one after the other in a bucket, the bucket is cut into
// equal shards, and shard r belongs to rank r of the shard group. So a gather is in place and equal-sized, a
// parameter is contiguous in the gathered bucket, and offsets are computed everywhere and exchanged nowhere.
//
// Cuts fall on any element of a parameter: it may span shards, a shard may hold none of a small one, and a
// rank with an empty part is normal. Every parameter starts on a 256-byte boundary in compute precision,
// every shard on a 16-byte one (what vector loads and NCCL's fast path ask for); the only padding is between
// parameters and after the last one.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "fsdp/plan/model_facts.h"

namespace fsdpd {

struct ParamSlot {
  std::string name;
  std::vector<int64_t> shape;
  bool decay = true;
  int64_t offset = 0;  // Elements from the bucket's start.
  int64_t elements = 0;
};

struct UnitLayout {
  std::string name;
  std::vector<ParamSlot> params;
  int64_t elements = 0;         // Parameters' own.
  int64_t bucket_elements = 0;  // With padding; shard_elements x shards.
  int64_t shard_elements = 0;
};

struct Layout {
  int64_t shards = 1;  // Size of the shard group: world, or 1 for no_shard.
  std::vector<UnitLayout> units;

  int64_t elements() const;        // Parameters of the model.
  double padding_ratio() const;    // Padding over parameters.
  int64_t shard_elements() const;  // Of one rank, padding included.
};

// A piece of one parameter within one shard: elements [param_begin, param_begin + elements) of the flattened
// parameter lie at [shard_begin, ...) of the shard.
struct ShardPiece {
  int param = 0;
  int64_t param_begin = 0;
  int64_t shard_begin = 0;
  int64_t elements = 0;
};

Layout MakeLayout(const ModelFacts& model, int64_t shards, DType compute);

// The pieces of shard `shard` of `unit`, in order; empty when it holds padding only.
std::vector<ShardPiece> PiecesOf(const UnitLayout& unit, int64_t shard);

}  // namespace fsdpd
